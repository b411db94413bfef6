"""Bench: the effect of each part of the recipe of benchmarks.learning, on the simulated network.

    python -m benchmarks.ablation --seeds 0
    python -m benchmarks.ablation --variants "random order" "no repeats"

Trains `tiny` with one part of the recipe removed or changed, and evaluates it as
benchmarks.learning does. Results go to results/, as `ablation`.
"""

import functools
import itertools
import sys
from collections.abc import Sequence

from beam_pipeline.errors import UsageError
from benchmarks import learning, runner
from benchmarks import markdown as md
from benchmarks.results import Results, Run

# Changes of the recipe, by their effect.
VARIANTS = {
    "the recipe": (),
    "linear RTTs": ("network_log_rtt=false",),
    "no repeats": ("network_repeat_share=0",),
    "random order": ("network_fixed_order_share=0",),
    "fixed order, then random": ("network_fixed_order_share=[1,0.5,0]",),
    "both orders, then random": ("network_fixed_order_share=[0.5,0.5,0]",),
    "all tokens count": ("network_loss_weights={}",),
    "random order, no repeats, all tokens count": (
        *("network_fixed_order_share=0", "network_repeat_share=0", "network_loss_weights={}"),
    ),
}
_RTT_BYTES = ("RTT, first byte", "RTT, second byte")


def _run(argv: Sequence[str]) -> int:
    parser = learning.make_parser("ablation", "Which part of the recipe matters.")
    runner.add_choices(parser, "--variants", VARIANTS)
    args = parser.parse_args(argv)
    if args.planetlab:
        raise UsageError("--planetlab is given, but the recipe is the simulated network's: omit it")
    bench, rows = learning.begin("ablation", args, learning.RECIPE)
    for seed, variant in itertools.product(args.seeds, args.variants):
        name = f"variant-{[*VARIANTS].index(variant)}-seed-{seed}"
        recipe = [*learning.RECIPE, *VARIANTS[variant]]
        case = {"variant": variant, "seed": seed}
        bench.keep(learning.trained(bench, rows, name, case, recipe), learning.SHOWN)
    return bench.end(markdown([bench.results]))


def markdown(day: Sequence[Results]) -> str:
    """Returns the table of a day's results, one line per number of steps, variant and seed."""
    columns: md.Columns = {
        "": lambda run: run.case["variant"],
        "seed": lambda run: str(run.case["seed"]),
        "steps": lambda run: f"{_num_steps(run):,}",
        "bits per token": md.figure("bits", "{:.3f}"),
        **{f"{name}, bits": functools.partial(_kind_bits, name) for name in _RTT_BYTES},
        "error, destination seen before": md.figure("rtt_error_seen", "{:.1%}"),
        "error, destination new": md.figure("rtt_error_new", "{:.1%}"),
        "in the central 80 %": md.figure("within_80", "{:.1%}"),
    }
    order = [*VARIANTS]
    runs = sorted(
        (run for results in day for run in results.runs),
        key=lambda run: (_num_steps(run), order.index(run.case["variant"]), run.case["seed"]),
    )
    return f"""{md.results_table(columns, runs, num_named=2)}

Errors are medians for held-out probes. Bits are on contexts drawn as the model was trained last.

{md.circumstances(day[-1])}"""


def _num_steps(run: Run) -> int:
    """Returns the steps of a run; 0 if it failed."""
    curve = run.details.get("curve")
    return int(curve[-1]["step"]) if curve else 0


def _kind_bits(name: str, run: Run) -> str:
    kinds = run.details["evaluation"]["loss"]["kinds"]
    return next(f"{kind['bits']:.2f}" for kind in kinds if kind["name"] == name)


main = runner.program(_run)

if __name__ == "__main__":
    sys.exit(main())
