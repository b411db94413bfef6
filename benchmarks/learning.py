"""Bench: what `tiny` learns of a network on a CPU, through MaxText, over several seeds.

    python -m benchmarks.learning --seeds 0 1 2
    python -m benchmarks.learning --planetlab=planetlab.parquet

The dataset, made once, is a simulated network of 8,000 probes, in cities with separate address
prefixes, which ping 50 destinations; or the measurements of 490 PlanetLab nodes. For each seed, of
the weights and of the data, it trains, then evaluates on held-out probes. Curves, figures and
commands go to results/, as `learning` or as `planetlab`.
"""

import argparse
import json
import math
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from beam_pipeline.cli.flags import OneLineParser
from benchmarks import ROOT, planetlab, runner
from benchmarks import markdown as md
from benchmarks import results as results_files
from benchmarks.results import Results, Run
from benchmarks.runner import Bench, Found, module_command

_PACKAGES = ("maxtext", "jax", "flax", "optax", "grain", "numpy", "numba")
NETWORK = ("--num_measurements=10000000", "--num_probes=8000", "--num_anchors=50", "--seed=1")
RECIPE = (
    *("network_curriculum=128x10500,512x5700", "steps=16700", "network_mixed_rows=none"),
    *("network_fixed_order_share=1", "network_repeat_share=[0.3,0.4,0.1]", "network_log_rtt=true"),
    'network_loss_weights={"destination":0.4,"timestamp":0.4}',
)
OF_PLANETLAB = (  # in addition to, or instead of these
    *("network_random_source_share=0.8", "network_curriculum=128x5000,512x4000,512x5500"),
    *("steps=15000", "network_repeat_share=[0.1,0.75,0.3,0.2]"),
    'network_loss_weights={"destination":0.3,"timestamp":0.3}',
)
EXTENT = ("--num_rtt=4000",)  # of the evaluation
_CURVE_POINTS = 72
SHOWN = {name: name for name in ("minutes", "bits", "rtt_error_seen", "rtt_error_new")}


def _run(argv: Sequence[str]) -> int:
    args = make_parser("learning", "What tiny learns.").parse_args(argv)
    name = "planetlab" if args.planetlab else "learning"
    recipe = [*RECIPE, *(OF_PLANETLAB if args.planetlab else ())]
    bench, rows = begin(name, args, recipe)
    for seed in args.seeds:
        bench.keep(trained(bench, rows, f"seed-{seed}", {"seed": seed}, recipe), SHOWN)
    return bench.end(markdown(bench.results))


def make_parser(name: str, description: str) -> OneLineParser:
    """Returns the parser of a bench that trains on a simulated network or on PlanetLab."""
    parser = runner.bench_parser(name, description, rounds=1)
    parser.set_defaults(data_dir=None)
    parser.add_argument(
        "--planetlab",
        type=Path,
        metavar="FILE",
        help="what PlanetLab's nodes measured, in place of a simulated network: docs/learning.md",
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--recipe", nargs="*", default=[], help="further key=value of the training")
    return parser


def begin(name: str, args: argparse.Namespace, recipe: Sequence[str]) -> tuple[Bench, Path]:
    """Returns the bench and its training dataset."""
    args.data_dir = args.data_dir or ROOT / "build" / (
        "planetlab" if args.planetlab else "learning"
    )
    network = [] if args.planetlab else [*NETWORK]
    options = {"network": network, "recipe": [*recipe, *args.recipe]}
    bench = Bench(name, args, options, results_files.versions(_PACKAGES))
    return bench, _make_dataset(args.data_dir, args.planetlab)


def _make_dataset(work: Path, measured: Path | None) -> Path:
    measurements, rows = work / "measurements", work / "rows"
    if not (rows / "_SUCCESS").exists():
        if measured:
            measurements.mkdir(exist_ok=True)
            planetlab.write_without_held_out(measured, measurements / "planetlab.parquet")
        else:
            _python("beam_pipeline.generate", f"--output={measurements}", *NETWORK, "--overwrite")
        flags = [f"--input={measurements}/*.parquet", f"--output={rows}", "--overwrite"]
        _python("beam_pipeline.main", *flags)
    return rows


def _python(module: str, *arguments: str) -> None:
    subprocess.run([*module_command(module), *arguments], cwd=ROOT, check=True)


def trained(
    bench: Bench, rows: Path, name: str, case: dict[str, Any], recipe: Sequence[str]
) -> Run:
    """Trains and evaluates with the seed of a case."""
    folder, arguments = new_run(bench, rows, name, case["seed"], recipe)

    def check(_: Path, printed: str) -> Found:
        _python("benchmarks.baselines", f"--checkpoint={folder}", f"--data={rows}", *EXTENT)
        text = (folder / "evaluation" / "evaluation.json").read_text()
        evaluation = json.loads(_relative(text, bench))
        shown = ["python", "-m", "training.train", *(_relative(a, bench) for a in arguments)]
        details = {
            "command": shlex.join(shown),
            "curve": _curve(folder / "metrics.jsonl"),
            "evaluation": evaluation,
        }
        return Found(figures_of(evaluation) | {"waiting": _waiting(printed)}, None, details)

    command = [*module_command("training.train"), *arguments]
    run = bench.measured(case, 0, lambda _: command, check, folder / "train.log")
    run.figures["minutes"] = run.figures["wall_s"] / 60
    run.figures["cpu_minutes"] = run.figures["cpu_s"] / 60
    return run


def new_run(
    bench: Bench, rows: Path, name: str, seed: int, recipe: Sequence[str]
) -> tuple[Path, list[str]]:
    """Returns the folder of a new run of `tiny`, and its arguments for training.train."""
    work = bench.args.data_dir
    folder = work / "runs" / f"{name}-{datetime.now(UTC):%Y%m%d%H%M%S}"
    folder.mkdir(parents=True)
    arguments = [
        f"network_train_files={rows / 'train'}",
        f"network_cache_dir={work / 'cache'}",
        f"base_output_directory={folder.parent}",
        f"run_name={folder.name}",
        f"metrics_file={folder / 'metrics.jsonl'}",
        f"init_weights_seed={seed}",
        f"data_shuffle_seed={100 * seed}",
        *recipe,
        *bench.args.recipe,
    ]
    # The last value of a key counts.
    by_key = {argument.partition("=")[0]: argument for argument in arguments}
    return folder, ["tiny", *by_key.values()]


def _relative(text: str, bench: Bench) -> str:
    """Returns a text with the folders of this checkout and of the bench's data made relative."""
    return text.replace(f"{ROOT}/", "").replace(f"{bench.args.data_dir}/", "")


def _waiting(printed: str) -> float:
    """Returns the share of time spent waiting for data, as last printed."""
    return float(re.findall(r"waited for data ([0-9.]+)%", printed)[-1]) / 100


def _curve(metrics: Path) -> list[dict[str, float]]:
    """Returns a run's mean loss, in bits per token, over groups of steps."""
    steps = [json.loads(line) for line in metrics.read_text().splitlines()]
    size = max(1, len(steps) // _CURVE_POINTS)
    points, seconds = [], 0.0
    for begin in range(0, len(steps), size):
        part = steps[begin : begin + size]
        seconds += sum(step["perf/step_time_seconds"] for step in part)
        bits = sum(step["learning/loss"] for step in part) / len(part) / math.log(2)
        points.append({"step": part[-1]["step"] + 1, "minutes": seconds / 60, "bits": bits})
    return points


# --- the tables -----------------------------------------------------------------------------------


class Bar(NamedTuple):
    """A figure, its title and limits, and the token kind, if for one kind only.

    `rival` is a method whose error for new destinations, in the same run, is the limit.
    """

    figure: str
    title: str
    limit: float = math.inf
    lowest: float = -math.inf
    kind: str = ""
    pattern: str = ".3f"
    rival: str = ""

    @property
    def text(self) -> str:
        """The limits, such as "≤ 1.2"; empty if there are none."""
        if self.rival:
            return f"≤ {self.rival}"
        if math.isinf(self.limit) and math.isinf(self.lowest):
            return ""
        low, high = (f"{end:{self.pattern}}" for end in (self.lowest, self.limit))
        if math.isinf(self.limit):
            return f"≥ {low}"
        return f"≤ {high}" if math.isinf(self.lowest) else f"{low} to {high}"


BARS = (
    Bar("bits", "bits per token, all", 1.2),
    Bar("source_again_bits", "source bytes after the first measurement", 0.1, kind="source, again"),
    Bar("destination_bits", "destination bytes", 1.2, kind="destination"),
    Bar("sigmas", "RTT: nearer than last seen, sign test, in σ", lowest=2, pattern=".1f"),
    Bar("rtt_error_seen", "RTT: median error, destination seen before", 0.022, pattern=".1%"),
    Bar("rtt_error_new", "the same, destination new to the context", 0.1, pattern=".1%"),
    Bar("within_80", "true RTTs in the central 80 %", 0.82, 0.78, pattern=".1%"),
)
TIMES = (
    Bar("minutes", "minutes of training, start and compiling included", 15, pattern=".1f"),
    Bar("cpu_minutes", "the same in CPU-minutes", pattern=".1f"),
    Bar("waiting", "share of the time that training waited for data", 0.05, pattern=".1%"),
)
# Where PlanetLab's differ: it has bars only for RTTs and for waiting.
_PLANETLAB = {
    "rtt_error_seen": {"limit": 0.01},
    "rtt_error_new": {"limit": math.inf, "rival": "factorisation"},
    "within_80": {},
    "waiting": {},
}
_NO_BAR = {"limit": math.inf, "lowest": -math.inf}
METHODS = (
    *("model", "last seen", "context median", "prefix × destination", "destination"),
    *("Vivaldi", "factorisation", "five nearest"),
)


def bars_of(bench: str) -> list[Bar]:
    """Returns the required figures of a bench, `learning` or `planetlab`."""
    bars = [*BARS, *TIMES]
    if bench == "learning":
        return bars
    return [bar._replace(**_PLANETLAB.get(bar.figure, _NO_BAR)) for bar in bars]


def figures_of(evaluation: dict[str, Any]) -> dict[str, float]:
    """Returns the figures of an evaluation.json that have a bar, with unigrams beside them."""
    loss = evaluation["loss"]
    kinds = {line["name"]: line for line in loss["kinds"]}
    (last_seen,) = (
        error
        for error in evaluation["rtt"]["errors"]
        if (error["method"], error["group"]) == ("last seen", "all")
    )
    nearer, farther = last_seen["model_nearer"], last_seen["model_farther"]
    figures = {
        "bits": loss["overall"]["bits"],
        "unigram_bits": loss["overall"]["kind_unigram_bits"],
        "sigmas": (nearer - farther) / math.sqrt(max(nearer + farther, 1)),
        "rtt_error_seen": rtt_errors(evaluation, "repeat")["model"],
        "rtt_error_new": rtt_errors(evaluation, "first")["model"],
        "within_80": evaluation["calibration"]["coverage"]["80%"],
    }
    for bar in BARS:
        if bar.kind:
            figures[bar.figure] = kinds[bar.kind]["bits"]
            figures[f"unigram_{bar.figure}"] = kinds[bar.kind]["kind_unigram_bits"]
    return figures


def rtt_errors(evaluation: dict[str, Any], group: str = "all") -> dict[str, float]:
    """Returns the median relative error of each method."""
    return {
        error["method"]: error["median_relative"]
        for error in evaluation["rtt"]["errors"]
        if error["group"] == group
    }


def markdown(results: Results) -> str:
    """Returns the tables of all seeds, and the command."""
    runs = [run for run in results.runs if not run.error]
    failed = [f"Seed {run.case['seed']} failed: {run.error}." for run in results.runs if run.error]
    if not runs:
        return "\n".join(failed)
    seeds = [f"seed {run.case['seed']}" for run in runs]
    figures = [_figure_cells(bar, runs) for bar in bars_of(results.bench)]
    columns = ["held-out probes", "unigram by kind", "bar", *seeds]
    methods = [_error_cells(method, runs) for method in METHODS if _is_known(method, runs)]
    return f"""{md.table(columns, figures)}

Median error of RTTs whose destination is known, for all queries, for destinations that are new to \
the context, and for those it has shown before:

{md.table(["method", *seeds], methods)}

{"".join(f"{line}\n" for line in failed)}{md.circumstances(results)}

{_commands(results, runs[0].details["command"])}"""


def _commands(results: Results, training: str) -> str:
    seeds = "Seed s has `init_weights_seed=s data_shuffle_seed=100s`."
    if results.bench != "learning":
        recipe = dict(item.split("=", 1) for item in results.options["recipe"])
        return f"Recipe: `{' '.join('='.join(item) for item in recipe.items())}`. {seeds}"
    return f"""```sh
python -m beam_pipeline.generate --output=build/learning/measurements \
{" ".join(results.options["network"])}
python -m beam_pipeline.main --input='build/learning/measurements/*.parquet' \
--output=build/learning/rows
{training}
```

{seeds} `python -m benchmarks.learning` does all of it."""


def _figure_cells(bar: Bar, runs: Sequence[Run]) -> list[str]:
    figures = [run.figures | figures_of(run.details["evaluation"]) for run in runs]
    unigram = figures[0].get(f"unigram_{bar.figure}")
    cells = [bar.title, "" if unigram is None else f"{unigram:.2f}", bar.text]
    for run, found in zip(runs, figures, strict=True):
        value, limit = found[bar.figure], bar.limit
        if bar.rival:
            limit = rtt_errors(run.details["evaluation"], "first")[bar.rival]
        missed = not bar.lowest <= value <= limit
        cells.append(f"{value:{bar.pattern}}" + (" ✗" if missed else ""))
    return cells


def _is_known(method: str, runs: Sequence[Run]) -> bool:
    """Returns whether the evaluations have a method; older results lack some."""
    return all(method in rtt_errors(run.details["evaluation"]) for run in runs)


def _error_cells(method: str, runs: Sequence[Run]) -> list[str]:
    cells = []
    for run in runs:
        evaluation = run.details["evaluation"]
        shares = [rtt_errors(evaluation, group)[method] for group in ("all", "first", "repeat")]
        cells.append(" / ".join(f"{share:.1%}" for share in shares))
    return [method, *cells]


def draw_curves(results: Results, path: Path) -> None:
    """Draws the training loss of all seeds over minutes."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    for run in results.runs:
        points = run.details.get("curve", [])
        minutes, bits = ([point[name] for point in points] for name in ("minutes", "bits"))
        axes.plot(minutes, bits, label=f"seed {run.case['seed']}")
    axes.set(xlabel="minutes of steps", ylabel="training loss, bits a token", ylim=(0, 4))
    axes.legend()
    axes.grid(alpha=0.3)
    with rc_context({"svg.hashsalt": "learning"}):  # the same curves give the same file
        figure.savefig(path, metadata={"Date": None})


main = runner.program(_run)

if __name__ == "__main__":
    sys.exit(main())
