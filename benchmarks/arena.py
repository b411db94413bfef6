"""Bench: the errors of predicted RTTs, of models and of simple methods, on several networks.

    python -m benchmarks.arena --planetlab=planetlab.parquet
    python -m benchmarks.arena --networks small --checkpoint small=runs/first small=runs/second
    python -m benchmarks.arena --networks small reroute --seeds 0 1 2
    python -m benchmarks.arena --networks small --seeds 0 --ablate network_log_rtt=false
    python -m benchmarks.arena --networks my/rows --checkpoint my/rows=runs/first

The networks are those of benchmarks.networks, or any dataset's folder; the methods those of
benchmarks.baselines, and of `training.evaluate`, whose definitions hold: at least half of the RTTs,
of held-out probes, are to destinations that the context has measured, and half to new ones. A model
is asked in contexts of its own kind, the simple methods in those of `baselines.Contexts`. Models
are checkpoints, or trained here: `tiny` with its recipe, and then, by --ablate, with one change of
it.
"""

import math
import shlex
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from beam_pipeline.cli.flags import OneLineParser
from beam_pipeline.errors import UsageError
from benchmarks import ROOT, networks, runner
from benchmarks import markdown as md
from benchmarks import results as results_files
from benchmarks.results import Results, Run
from benchmarks.runner import Bench, Found, call_command, module_command

_PACKAGES = (
    *("maxtext", "jax", "flax", "optax", "grain", "numpy", "numba", "scikit-learn", "torch"),
)
EXTENT = {"num_rtt": 4000}  # of an evaluation
GROUPS = ("all", "repeat", "first")
BEST_SEEN = ("last seen", "context median")
BEST_NEW = ("destination", "prefix × destination", "factorisation")
_SHOWN = {"all": "all", "repeat": "seen", "first": "new", "within_80": "in 80 %", "wall_s": "s"}


def _run(argv: Sequence[str]) -> int:
    args = _make_parser().parse_args(argv)
    bench = Bench("arena", args, {"recipe": args.recipe}, results_files.versions(_PACKAGES))
    of_network = _checkpoints(args.checkpoint, args.networks)
    for name in args.networks:
        rows = networks.make(name, args.data_dir, args.planetlab)
        bench.keep(_evaluation(bench, {"network": name, "model": ""}, None, rows), {"wall_s": "s"})
        for folder in of_network[name]:
            case = {"network": name, "model": "/".join(Path(folder).parts[-3:])}
            bench.keep(_evaluation(bench, case, folder, rows), _SHOWN)
        for seed in args.seeds:
            for change in ["", *args.ablate]:
                bench.keep(_trained(bench, name, rows, seed, change), _SHOWN)
    return bench.end(markdown(bench.results))


def _make_parser() -> OneLineParser:
    parser = runner.bench_parser("arena", "Errors of RTTs: models and methods.", rounds=1)
    parser.set_defaults(data_dir=networks.FOLDER)
    networks.add_flags(parser)
    add = parser.add_argument
    names = f"of {', '.join(networks.NAMES)}; or folders of datasets"
    add("--networks", nargs="+", default=[*networks.NAMES], metavar="NAME", help=names)
    add("--checkpoint", nargs="+", default=[], metavar="NETWORK=RUN", help="models to evaluate")
    add("--seeds", nargs="+", type=int, default=[], help="train tiny with these seeds")
    add("--recipe", nargs="+", default=[], metavar="KEY=VALUE", help="further keys of the training")
    add("--ablate", nargs="+", default=[], metavar="KEY=VALUE", help="one more model for each")
    return parser


def _checkpoints(given: Sequence[str], names: Sequence[str]) -> dict[str, list[str]]:
    """Returns the checkpoints of each network."""
    found: dict[str, list[str]] = {name: [] for name in names}
    for text in given:
        name, _, folder = text.rpartition("=")
        if name not in found or not Path(folder).exists():
            raise UsageError(
                f"--checkpoint {text}: write NETWORK=RUN, with one of {', '.join(names)} and the "
                "folder of a run"
            )
        found[name].append(str(Path(folder).absolute()))
    return found


def _trained(bench: Bench, name: str, rows: Path, seed: int, change: str) -> Run:
    """Trains `tiny` and evaluates it."""
    work = rows.parent
    folder = work / "runs" / f"seed-{seed}-{datetime.now(UTC):%Y%m%d%H%M%S}"
    folder.mkdir(parents=True)
    arguments = [
        f"network_train_files={rows / 'train'}",
        f"network_cache_dir={work / 'cache'}",
        f"base_output_directory={folder.parent}",
        f"run_name={folder.name}",
        f"metrics_file={folder / 'metrics.jsonl'}",
        f"init_weights_seed={seed}",
        f"data_shuffle_seed={100 * seed}",
        *bench.args.recipe,
        *([change] if change else []),
    ]
    # The last value of a key counts.
    by_key = {argument.partition("=")[0]: argument for argument in arguments}
    command = [*module_command("training.train"), "tiny", *by_key.values()]
    model = ", ".join(["tiny", *([change] if change else []), f"seed {seed}"])

    def check(_: Path, __: str) -> Found:
        evaluation = runner.call("benchmarks.arena:evaluated", folder, rows, EXTENT)
        shown = ["python", "-m", "training.train", *command[3:]]
        text = shlex.join(shown).replace(f"{bench.args.data_dir}/", "").replace(f"{ROOT}/", "")
        return _found(evaluation, {"command": text})

    case = {"network": name, "model": model}
    return bench.measured(case, 0, lambda _: command, check, folder / "train.log")


def _evaluation(bench: Bench, case: dict[str, Any], checkpoint: str | None, rows: Path) -> Run:
    """Evaluates a checkpoint, or the simple methods alone."""
    command = call_command("benchmarks.arena:evaluated", checkpoint, rows, EXTENT)
    return bench.measured(
        case, 0, lambda _: command, lambda _, text: _found(runner.json_lines(text)[-1], {})
    )


def _found(evaluation: dict[str, Any], details: dict[str, Any]) -> Found:
    return Found(evaluation.pop("figures"), None, {**details, **evaluation})


# --- evaluation, in a process of its own ----------------------------------------------------------


class _NoModel:
    """A predictor that knows nothing, for the sake of the others."""

    crop_size, fixed_order_share, log_rtt = 1024, 1.0, True
    step, vocab_size, description = 0, 267, ""

    def __call__(self, inputs: Any, positions: Any, segmentation: Any) -> Any:
        import numpy as np

        return np.broadcast_to(np.float32(-math.log(self.vocab_size)), (*inputs.shape, 267))


def evaluated(checkpoint: str | None, rows: str, extent: dict[str, int]) -> dict[str, Any]:
    """Evaluates a checkpoint, or nothing, beside all methods, on the test split.

    Returns:
      errors: of each method, the median relative error of each of GROUPS
      figures: those of the model, empty without one
    """
    from benchmarks.baselines import predict
    from training.evaluation.examples import open_splits
    from training.evaluation.results import evaluate
    from training.evaluation.rtt import MODEL
    from training.extent import EvaluationExtent

    if checkpoint:
        from training.maxtext.predictor import load_predictor

        predictor = load_predictor(checkpoint)
    else:
        predictor = _NoModel()
    evaluation = evaluate(
        predictor, *open_splits(rows), EvaluationExtent(**extent), more_baselines=predict
    )
    errors: dict[str, dict[str, float]] = {}
    for error in evaluation.errors:
        errors.setdefault(error.method, {})[error.group] = error.median_relative
    of_model, figures = errors.pop(MODEL), {}
    if checkpoint:
        assert evaluation.calibration
        (last,) = (e for e in evaluation.errors if (e.method, e.group) == ("last seen", "all"))
        nearer, farther = last.model_nearer, last.model_farther
        figures = {
            **of_model,
            "within_80": evaluation.calibration.coverage["80%"],
            "sigmas": (nearer - farther) / math.sqrt(max(nearer + farther, 1)),
            "bits": evaluation.losses.overall.bits,
        }
    return {"errors": errors, "figures": figures}


# --- the table ------------------------------------------------------------------------------------


def markdown(results: Results) -> str:
    """Returns the table: a line for each method and model, a column for each network."""
    runs = [run for run in results.runs if not run.error]
    names = [*dict.fromkeys(run.case["network"] for run in runs)]
    cells: dict[str, dict[str, str]] = {}
    for run in runs:
        name = run.case["network"]
        for method, errors in run.details["errors"].items() if not run.case["model"] else ():
            cells.setdefault(method, {})[name] = " / ".join(_shares(errors))
        if run.case["model"]:
            cells.setdefault(run.case["model"], {})[name] = _model_cell(run)
    lines = [[title, *(found.get(name, "") for name in names)] for title, found in cells.items()]
    failed = [f"{run.case} failed: {run.error}." for run in results.runs if run.error]
    return "\n\n".join([md.table(["method", *names], lines), *failed, md.circumstances(results)])


def _shares(errors: dict[str, float]) -> Iterator[str]:
    return (f"{errors[group]:.1%}" if group in errors else "–" for group in GROUPS)


def _model_cell(run: Run) -> str:
    shares = [*_shares(run.figures), f"{run.figures['within_80']:.1%}"]
    marks = [" ✗" if missed else "" for missed in _missed(run)]
    return " / ".join(map("".join, zip(shares, marks, strict=True)))


def _missed(run: Run) -> Iterator[bool]:
    """Yields for all, seen and new destinations, and the interval, whether the bar is missed."""
    errors, figures = run.details["errors"], run.figures

    def best(group: str, methods: Sequence[str]) -> float:
        return min((errors[m][group] for m in methods if group in errors.get(m, {})), default=9.0)

    yield figures["sigmas"] < 2
    yield figures.get("repeat", 0) > 1.1 * best("repeat", BEST_SEEN)
    yield figures.get("first", 0) > best("first", BEST_NEW)
    yield not 0.77 <= figures["within_80"] <= 0.83


main = runner.program(_run)

if __name__ == "__main__":
    sys.exit(main())
