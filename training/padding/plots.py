"""Draws `Figures` as pictures; needs matplotlib, and no display."""

import math
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from beam_pipeline.report.plot_style import COLORS, new_picture, say_none, span_axis, two_axes
from training.padding.statistics import FAMILIES, SIZE_NAMES, SMALL, Figures
from training.padding.summary import Line, expected_contexts, mean_padding, untimed_shares
from training.tokens.draws import LEAST_UNTIMED, MODE_NAMES, MOST_UNTIMED, PARTIAL


def write_plots(figures: Figures, summary: dict[str, list[Line]], folder: Path) -> list[str]:
    """Writes all pictures of which there is something to show; returns their names."""
    names = []
    for name, draw in (
        ("padding", _padding),
        ("modes", _modes),
        ("contexts_per_row", _contexts_per_row),
        ("window_spans", _window_spans),
        ("strides", _strides),
        ("tokens_per_measurement", _tokens),
        ("bytes_per_measurement", _bytes),
    ):
        place = f"{figures.dataset.path} · {figures.shards.split} · {figures.encoding}"
        picture = new_picture(place)
        draw(picture, figures, summary)
        names.append(f"{name}.png")
        picture.savefig(folder / names[-1])
    return names


def _padding(picture: Figure, figures: Figures, summary: dict[str, list[Line]]) -> None:
    left, right = picture.subplots(1, 2, width_ratios=(3, 2))
    kinds = list(dict.fromkeys(line["of"] for line in summary["padding"]))
    lines = [line for line in summary["padding"] if line["examples"]][::-1]
    labels = [f"{line['of']}: {line['group']}" for line in lines]
    means = [100 * line["mean"] for line in lines]
    colors = [COLORS[kinds.index(line["of"])] for line in lines]
    left.barh(labels, means, color=colors)
    for place, mean in enumerate(means):
        left.text(mean + 1, place, f"{mean:.3g} %", va="center", fontsize=7)
    left.set(xlim=(0, 115), xlabel="mean padding, % of the crop", title="Padding by kind")
    left.tick_params(axis="y", labelsize=7)
    right.set(title="Small rows: what packing saves", xlabel="padding of an example, %")
    if not len(figures.padded):
        say_none(right, "small rows")
        return
    padded = 100 * figures.padded["num_padding"] / figures.extent.crop_size
    right.hist(padded, np.linspace(0, 100, 41).tolist(), color=COLORS[1], label="a row alone")
    right.axvline(float(padded.mean()), color="black", linestyle="--", label="mean, alone")
    packed = mean_padding(summary, "batches of build_dataset")["mean"]
    if packed is not None:
        right.axvline(100 * packed, color=COLORS[0], linewidth=3, label="mean, packed in batches")
    right.set_ylabel("examples")
    right.set_ylim(0, 1.3 * right.get_ylim()[1])  # the legend above the bars
    right.legend(fontsize=8)


def _modes(picture: Figure, figures: Figures, summary: dict[str, list[Line]]) -> None:
    left, right = two_axes(picture)
    places = np.arange(len(MODE_NAMES))
    lines = summary["modes"]
    left.bar(places, [100 * x["expected"] for x in lines], 0.8, color="0.88", label="expected")
    for shift, rows in ((-0.2, "large"), (0.2, "small")):
        if lines[0][f"{rows}_draws"]:
            left.errorbar(
                places + shift,
                [100 * x[f"{rows}_share"] for x in lines],
                [100 * x[f"{rows}_bound"] for x in lines],
                fmt="o",
                capsize=5,
                color=COLORS[rows == "small"],
                label=f"{rows} rows, {lines[0][f'{rows}_draws']:,} draws",
            )
    left.set_xticks(places, MODE_NAMES)
    left.set(ylabel="share, %", title="Timestamp modes, with 4 σ of a binomial draw", ylim=0)
    left.legend(fontsize=8)
    right.set_title("Measurements without timestamp, mode partial")
    shares = 100 * untimed_shares(figures, PARTIAL)
    if not len(shares):
        say_none(right, "partial contexts of 20 measurements")
        return
    right.hist(shares, np.linspace(0, 100, 21).tolist(), color=COLORS[2])
    for share in (LEAST_UNTIMED, MOST_UNTIMED):
        right.axvline(100 * share, color="black", linestyle="--")
    right.set(xlabel="share of a context's measurements, %", ylabel="contexts")


def _contexts_per_row(picture: Figure, figures: Figures, summary: dict[str, list[Line]]) -> None:
    left, right = two_axes(picture)
    large = figures.sampled[figures.sampled["size"] != SMALL]
    small = figures.sampled[figures.sampled["size"] == SMALL]
    n = np.unique(np.geomspace(1, figures.rows.n_measurements.max(), 300).astype(np.int64))
    left.step(n, expected_contexts(n), color="0.7", label="min(⌈n / 30⌉, 16)", where="post")
    for name, color, rows in (("large rows", 0, large), ("small rows, packed", 1, small)):
        if len(rows):
            x, y = rows["num_measurements"], rows["num_contexts"]
            left.scatter(x, y, 12, color=COLORS[color], label=name)
    left.set(xscale="log", xlabel="measurements of the row", ylabel="contexts an epoch, K")
    left.set_title("Contexts per row, rows sampled")
    left.legend(fontsize=8)
    everything = figures.rows.n_measurements
    bins = np.geomspace(1, everything.max() + 1, 40)
    for size, name in enumerate(SIZE_NAMES):
        if (figures.sizes == size).any():
            label = name if size == SMALL else f"large, {name}"
            right.hist(everything[figures.sizes == size], bins, color=COLORS[size], label=label)
    right.set(xscale="log", yscale="log", xlabel="measurements of the row", ylabel="rows")
    right.set_title(f"All {len(everything):,} rows by size")
    right.legend(fontsize=8)


def _window_spans(picture: Figure, figures: Figures, summary: dict[str, list[Line]]) -> None:
    left, right = two_axes(picture)
    contexts = figures.contexts
    left.set(title="Time between the ends of a window", ylabel="contexts")
    right.set(title="Windows by their size", xlabel="measurements of the window")
    if not len(contexts):
        for axes in (left, right):
            say_none(axes, "large rows")
        return
    spans = np.maximum(contexts["span_seconds"], 1)
    sizes = figures.facts(contexts, "size")
    there = [size for size in range(len(SIZE_NAMES)) if (sizes == size).any()]
    left.hist(
        [spans[sizes == size] for size in there],
        np.geomspace(spans.min(), spans.max() * 1.01 + 1, 50).tolist(),
        stacked=True,
        color=[COLORS[size] for size in there],
        label=[f"rows {SIZE_NAMES[size]}" for size in there],
    )
    left.set_xlabel("seconds to days, logarithmic; below 1 s shown as 1 s")
    left.legend(fontsize=8)
    for size in there:
        some = sizes == size
        right.scatter(contexts["window"][some], spans[some], 4, color=COLORS[size], alpha=0.5)
    right.set_xscale("log")
    right.set_ylabel("time between its ends")
    span_axis(left, spans, "x")
    span_axis(right, spans, "y")


def _strides(picture: Figure, figures: Figures, summary: dict[str, list[Line]]) -> None:
    left, right = two_axes(picture)
    left.set(title="Strides of large rows", xlabel="stride", ylabel="share of contexts, %")
    right.set(title="Time that their contexts span", xlabel="stride")
    lines = summary["strides"]
    if not lines:
        for axes in (left, right):
            say_none(axes, "large rows")
        return
    labels = [f"{line['stride']}" for line in lines]
    bars = left.bar(labels, [100 * line["share"] for line in lines], color=COLORS[0])
    left.bar_label(bars, [f"{line['contexts']}" for line in lines], fontsize=7)
    strided = figures.strided[figures.facts(figures.strided, "size") != SMALL]
    spans = np.maximum(strided["span_seconds"], 1)
    right.boxplot(
        [spans[strided["window"] == line["stride"]] for line in lines],
        tick_labels=labels,
        whis=(0, 100),
    )
    span_axis(right, spans, "y")
    for axes in (left, right):
        axes.tick_params(axis="x", labelsize=7)


def _tokens(picture: Figure, figures: Figures, summary: dict[str, list[Line]]) -> None:
    families = [f for f in range(len(FAMILIES)) if (figures.sampled["family"] == f).any()]
    contexts = figures.contexts[figures.contexts["whole_measurements"] > 0]
    of_family = figures.facts(contexts, "family")
    values = contexts["whole_tokens"] / np.maximum(contexts["whole_measurements"], 1)
    panels = picture.subplots(1, max(1, len(families)), squeeze=False)[0]
    for axes, family in zip(panels, families, strict=False):
        some = values[of_family == family]
        axes.set(title=f"{FAMILIES[family]} rows", xlabel="tokens a measurement")
        if not len(some):
            say_none(axes, "large rows of this family")
            continue
        bins = np.linspace(math.floor(some.min()), math.ceil(some.max() + 0.01), 60)
        for mode, name in enumerate(MODE_NAMES):
            in_mode = values[(of_family == family) & (contexts["mode"] == mode)]
            axes.hist(in_mode, bins, color=COLORS[mode], alpha=0.7, label=f"mode {name}")
        axes.set_ylabel("contexts")
        axes.legend(fontsize=8)


def _bytes(picture: Figure, figures: Figures, summary: dict[str, list[Line]]) -> None:
    left, right = two_axes(picture)
    rows = figures.sampled
    left.set_title("Bytes of the encoded measurements")
    right.set_title("Bytes of the whole record")
    if not len(rows):
        for axes in (left, right):
            say_none(axes, "rows that could be read")
        return
    tokens = rows["untimed_tokens"] / rows["num_measurements"]
    largest = 0.0
    for axes, name in ((left, "measurements_bytes"), (right, "record_bytes")):
        stored = rows[name] / rows["num_measurements"]
        largest = max(largest, float(stored.max()))
        for family, label in enumerate(FAMILIES):
            some = rows["family"] == family
            if some.any():
                n, color = rows["num_measurements"][some], COLORS[family]
                axes.scatter(n, stored[some], 12, color=color, label=f"{label}: bytes")
                axes.scatter(n, tokens[some], 12, color=color, marker="_", label=f"{label}: tokens")
        axes.set(xscale="log", yscale="log", xlabel="measurements of the row")
        axes.set_ylabel("bytes, and tokens without time, a measurement")
    for axes in (left, right):
        axes.set_ylim(0.8 * min(10.0, float(tokens.min())), 1.3 * largest)
        ticks = [t for t in (10, 14, 20, 30, 40, 60, 100, 200, 500, 1000) if t <= 1.3 * largest]
        axes.set_yticks(ticks, [str(t) for t in ticks])
        axes.set_yticks([], minor=True)
    left.legend(fontsize=8)
