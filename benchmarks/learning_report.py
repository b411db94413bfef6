"""The learning bench's figures held against their bars: a table, notes, curves."""

from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import markdown as md
from benchmarks.results import LearningRun, Results


class Bar(NamedTuple):
    """A figure, what it is called, and what it must not exceed."""

    figure: str
    title: str
    limit: float
    is_share: bool = False

    def text(self, value: float) -> str:
        """Returns a value as people read it: bits, or percent."""
        return f"{value:.1%}" if self.is_share else f"{value:.3f}"


BARS = (
    Bar("bits", "bits a token, all", 1.65),
    Bar("source_again_bits", "source bytes after the first measurement", 0.1),
    Bar("destination_bits", "destination bytes", 1.2),
    Bar("rtt_exponent_bits", "RTT exponent byte", 3.0),
    Bar("rtt_error", "RTT median error, destination known", 0.15, is_share=True),
    Bar("rtt_error_ratio", "the same, of the destination median's", 0.5, is_share=True),
)
_KINDS = {
    "source_again_bits": "source, again",
    "destination_bits": "destination",
    "rtt_exponent_bits": "RTT exponent",
}
_METHODS = ("model", "last seen", "context median", "prefix × destination", "destination")


def figures_of(evaluation: dict[str, Any]) -> dict[str, float]:
    """Returns the figures that have a bar, and unigrams beside them, of an evaluation.json."""
    loss = evaluation["loss"]
    kinds = {line["name"]: line for line in loss["kinds"]}
    figures = {
        "bits": loss["overall"]["bits"],
        "unigram_bits": loss["overall"]["kind_unigram_bits"],
    }
    for figure, kind in _KINDS.items():
        figures[figure] = kinds[kind]["bits"]
        figures[f"unigram_{figure}"] = kinds[kind]["kind_unigram_bits"]
    errors = rtt_errors(evaluation)
    figures["rtt_error"] = errors["model"]
    figures["rtt_error_ratio"] = errors["model"] / errors["destination"]
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
    bars = [_bar_line(bar, runs) for bar in BARS]
    minutes = [f"{run.figures['minutes']:.1f}" for run in runs]
    bars.append(["minutes of training, start and compiling included", "", "≤ 15", *minutes])
    cpu_minutes = [f"{run.figures['cpu_minutes']:.1f}" for run in runs]
    bars.append(["the same in CPU-minutes", "", "", *cpu_minutes])
    waiting = [f"{run.figures['waiting']:.1%}" for run in runs]
    bars.append(["share of the time that training waited for data", "", "≤ 5%", *waiting])
    errors = [_error_line(method, runs) for method in _METHODS]
    return "\n".join(
        [
            md.table(["held-out probes", "unigram by kind", "bar", *seeds], bars),
            "",
            "Median error of RTTs whose destination is known, for all queries, for destinations "
            "that are new to the context, and for those it has shown before:",
            "",
            md.table(["method", *seeds], errors),
            "",
            *failed,
            md.circumstances(results),
            "",
            "```sh",
            "python -m beam_pipeline.generate --output=build/learning/measurements "
            + " ".join(results.options["network"]),
            "python -m beam_pipeline.main --input='build/learning/measurements/*.parquet' "
            "--output=build/learning/rows",
            *(run.command for run in runs[:1]),
            "```",
            "",
            "Seed s has `init_weights_seed=s data_shuffle_seed=100s`. `python -m "
            "benchmarks.learning` does all of it.",
        ]
    )


def _bar_line(bar: Bar, runs: list[LearningRun]) -> list[str]:
    values = [run.figures[bar.figure] for run in runs]
    unigram = runs[0].figures.get(f"unigram_{bar.figure}")
    marked = [bar.text(value) + (" ✗" if value > bar.limit else "") for value in values]
    return [bar.title, "" if unigram is None else f"{unigram:.2f}", f"≤ {bar.limit:g}", *marked]


def _error_line(method: str, runs: list[LearningRun]) -> list[str]:
    cells = []
    for run in runs:
        shares = [rtt_errors(run.evaluation, group)[method] for group in ("all", "first", "repeat")]
        cells.append(" / ".join(f"{share:.1%}" for share in shares))
    return [method, *cells]


def draw_curves(results: Results, path: Path) -> None:
    """Draws the training loss of all seeds over minutes."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    for run in results.runs:
        minutes = [point["minutes"] for point in run.curve]
        axes.plot(minutes, [point["bits"] for point in run.curve], label=f"seed {run.case['seed']}")
    axes.set(xlabel="minutes of steps", ylabel="training loss, bits a token", ylim=(0, 4))
    axes.legend()
    axes.grid(alpha=0.3)
    with rc_context({"svg.hashsalt": "learning"}):  # the same curves give the same file
        figure.savefig(path, metadata={"Date": None})
