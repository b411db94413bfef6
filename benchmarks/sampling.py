"""Bench: the effect of various window sizes and mixed timestamp modes on a model.

    python -m benchmarks.sampling --seeds 0 1 2
    python -m benchmarks.sampling --planetlab=planetlab.parquet

Trains small models through MaxText that differ only in how their contexts are drawn, and evaluates
each on held-out contexts of every timestamp mode and three window sizes: its loss there, in bits
per token. All figures but one exclude the bytes of the source: when a model learns that they repeat
is chance, and outweighs all else. Results go to results/, as `sampling` or as `sampling_planetlab`.
"""

import itertools
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import learning, runner
from benchmarks import markdown as md
from benchmarks.results import Results
from benchmarks.runner import Bench, Found, module_command

RECIPE = (
    *("max_target_length=512", "per_device_batch_size=2", "network_curriculum=128x1500"),
    *("steps=2200", "network_mixed_rows=none", "network_log_rtt=true"),
)
# How a model's contexts are drawn, in addition to the recipe.
VARIANTS = {
    "all sizes, 40/30/30": (),
    "successive measurements": ("network_window_shares=[0,0]",),
    "from whole rows": ("network_window_shares=[1,1]",),
    "full timestamps": ("network_mode_weights=[1,0,0]",),
    "no timestamps": ("network_mode_weights=[0,0,1]",),
    "strides": ("network_sampler=windows",),
    "strides, each half as often": ("network_sampler=windows", "network_stride_ratio=0.5"),
}
# Evaluation contexts.
MODES = {"full": (1, 0, 0), "partial": (0, 1, 0), "none": (0, 0, 1)}
WINDOWS = {"successive": (0, 0), "a third": (0.3, 0.35), "whole row": (1, 1)}


def _run(argv: Sequence[str]) -> int:
    parser = learning.make_parser("sampling", "What the ways to draw contexts do for a model.")
    parser.add_argument("--variants", nargs="+", choices=[*VARIANTS], default=[*VARIANTS])
    args = parser.parse_args(argv)
    name = "sampling_planetlab" if args.planetlab else "sampling"
    bench, rows = learning.begin(name, args, RECIPE)
    for seed, variant in itertools.product(args.seeds, args.variants):
        _train(bench, rows, variant, seed)
    return bench.end(markdown(bench.results))


def _train(bench: Bench, rows: Path, variant: str, seed: int) -> None:
    """Trains and evaluates one model."""
    name = f"{[*VARIANTS].index(variant)}-seed-{seed}"
    folder, arguments = learning.new_run(bench, rows, name, seed, [*RECIPE, *VARIANTS[variant]])

    def check(_: Path, __: str) -> Found:
        return Found(runner.call("benchmarks.sampling:losses", folder, rows), None)

    command = [*module_command("training.train"), *arguments]
    case = {"variant": variant, "seed": seed}
    shown = {"wall_s": "s", "all": "bits"}
    bench.keep(bench.measured(case, 0, lambda _: command, check, folder / "train.log"), shown)


def losses(checkpoint: str, rows: str) -> dict[str, float]:
    """Returns a model's bits per token on held-out contexts.

    "with source" is of all tokens; the others, of all contexts and of each mode and window, exclude
    the bytes of the source.
    """
    import numpy as np

    from training.evaluation.examples import draw_examples, open_splits
    from training.evaluation.predictions import causal_pass
    from training.extent import EvaluationExtent
    from training.maxtext.predictor import load_predictor
    from training.tokens.kinds import FIRST_SRC, LATER_SRC, MEASUREMENT, NOTHING, parse

    predictor, (split, _) = load_predictor(checkpoint), open_splits(rows)
    extent, no_queries = EvaluationExtent(num_contexts=96), np.zeros(0, MEASUREMENT)
    found: dict[tuple[str, str], float] = {}
    with_source = []
    for mode, window in itertools.product(MODES, WINDOWS):
        drawn = {"mode_weights": MODES[mode], "window_shares": WINDOWS[window]}
        examples = draw_examples(split, predictor, extent, **drawn)
        bits = causal_pass(predictor, examples, no_queries, lambda _: None).bits
        kinds = parse(examples.targets, examples.segmentation).kinds
        found[mode, window] = float(bits[~np.isin(kinds, (NOTHING, FIRST_SRC, LATER_SRC))].mean())
        with_source.append(float(bits[kinds != NOTHING].mean()))

    def mean(of: str | None = None) -> float:
        return statistics.fmean(bits for place, bits in found.items() if of is None or of in place)

    figures = {name: mean(name) for name in (*MODES, *WINDOWS)}
    return {"with source": statistics.fmean(with_source), "all": mean(), **figures}


def markdown(results: Results) -> str:
    """Returns the table: the median loss of each variant, and the largest half range of a row."""
    columns = ("with source", "all", *MODES, *WINDOWS)
    lines = []
    for variant in VARIANTS:
        if same := [r for r in results.runs if r.case["variant"] == variant and not r.error]:
            found = [[run.figures[name] for run in same] for name in columns]
            spreads = [(max(values) - min(values)) / 2 for values in found]
            numbers = [spreads[0], max(spreads[1:]), *map(statistics.median, found)]
            spread, largest, with_source, *others = (f"{number:.2f}" for number in numbers)
            lines.append([variant, f"{with_source} ± {spread}", *others, largest])
    seeds = len({run.case["seed"] for run in results.runs})
    return f"""{md.table(["how contexts were drawn", *columns, "± at most"], lines)}

Bits per token: the median of {seeds} seeds; ± is half their range, in the last column the largest \
of the row. The bytes of the source are in "with source" alone.

{md.circumstances(results)}"""


main = runner.program(_run)

if __name__ == "__main__":
    sys.exit(main())
