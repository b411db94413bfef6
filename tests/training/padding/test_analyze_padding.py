"""The analysis of padding: what it measures is true, and each check fails where it should."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from matplotlib.image import imread

from beam_pipeline import main as pipeline
from tests.support.damaged_dataset import DamagedDataset, edit, make_dataset_with_tied_probe
from tests.support.helpers import quick_and_slow
from training.analyze_padding import main
from training.dataset import DataConfig, build_dataset
from training.padding import checklist
from training.padding.extent import Extent
from training.padding.measuring import draw_rows, measure
from training.padding.statistics import SIZE_NAMES, SMALL, families_of, repeats_of, size_classes
from training.padding.summary import binomial_bound, summarise
from training.rows.row_source import ProbeRowDataSource
from training.sampler import ProbeRowSampler
from training.tokens.draws import MODE_NAMES
from training.tokens.example_faults import (
    BATCH_KEYS,
    Tally,
    context_fault,
    decoded,
    position_fault,
    segments_of,
    shape_fault,
    target_fault,
    time_fault,
)
from training.tokens.kinds import MIN_MEASUREMENTS_FOR_MODE, parse
from training.tokens.tokenizer import Measurement

PICTURES = (
    *("padding.png", "modes.png", "contexts_per_row.png", "repeats.png"),
    *("window_spans.png", "strides.png"),
    *("tokens_per_measurement.png", "bytes_per_measurement.png"),
)
BRIEF = ("--max_rows=40", "--num_batches=4")


@pytest.fixture(scope="session")
def arrow_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset_with_tied_probe(tmp_path_factory.mktemp("padding"), "arrow")


@pytest.fixture(scope="session")
def compact_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset_with_tied_probe(tmp_path_factory.mktemp("padding"), "compact")


@pytest.fixture(scope="session")
def small_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fifty probes of 3 to 23 measurements: none has enough for a crop."""
    counts = [3 + number % 21 for number in range(50)]
    return dataset_of(tmp_path_factory.mktemp("padding"), counts, num_destinations=250)


@pytest.fixture(scope="session")
def dataset_with_repeats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three probes that ping the same forty destinations in turn."""
    return dataset_of(tmp_path_factory.mktemp("padding"), [700] * 3, num_destinations=40)


def dataset_of(folder: Path, counts: list[int], num_destinations: int) -> Path:
    """Writes a dataset of a probe for each number of measurements."""
    n = sum(counts)
    table = pa.table(
        {
            "event_time": pa.array(1_700_000_000 + 300 * np.arange(n), pa.timestamp("s")),
            "src_addr": np.repeat([f"192.0.2.{number}" for number in range(len(counts))], counts),
            "dst_addr": [f"198.51.100.{i % num_destinations}" for i in range(n)],
            "ip_version": pa.array([4] * n, pa.int8()),
            "rtt": pa.array(np.arange(n) / 7 + 1, pa.float32()),
        }
    )
    pq.write_table(table, folder / "in.parquet")
    flags = [f"--input={folder}/in.parquet", f"--output={folder}/rows"]
    assert pipeline.main([*flags, "--measurement_encoding=arrow"]) == 0
    return folder / "rows"


@pytest.fixture
def copy(arrow_dataset: Path, tmp_path: Path) -> DamagedDataset:
    return DamagedDataset(Path(shutil.copytree(arrow_dataset, tmp_path / "dataset")))


def analyse(folder: Path, output: Path, *flags: str) -> tuple[int, dict[str, Any]]:
    """Returns the exit code and what figures.json holds."""
    code = main([str(folder), f"--output={output}", *BRIEF, *flags])
    return code, json.loads((output / "figures.json").read_bytes())


def results(figures: dict[str, Any]) -> dict[str, str]:
    return {check["name"]: check["result"] for check in figures["checks"]}


def failed(figures: dict[str, Any]) -> set[str]:
    return {name for name, result in results(figures).items() if result == "FAIL"}


# --- good datasets ------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", quick_and_slow(["arrow", "compact"], ["compact"]))
def test_a_good_dataset_passes(
    encoding: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, figures = analyse(request.getfixturevalue(f"{encoding}_dataset"), tmp_path / "out")
    assert code == 0
    found = results(figures)
    is_arrow = encoding == "arrow"
    assert found.pop("bytes_per_measurement") == ("not applicable" if is_arrow else "pass")
    assert found.pop("modes_small") in ("pass", "not applicable")
    assert set(found.values()) == {"pass"}
    out = capsys.readouterr().out
    for title in ("Padding", "Timestamp modes", "Strides", "Checklist", "rows read"):
        assert title in out
    for check in figures["checks"]:
        assert check["name"] in out and check["expectation"] and check["measured"]
    assert figures["sample"]["rows_read"] <= 40
    assert figures["sample"]["batches"] == 4
    assert figures["encoding"] == encoding
    rows = figures["figures"]["rows"]
    assert sum(line["rows"] for line in rows) == figures["sample"]["rows"]
    strides = [line["stride"] for line in figures["figures"]["strides"]]
    assert strides == sorted(strides) and strides[0] == 1


def test_repeats_are_counted_by_kind_of_context(dataset_with_repeats: Path, tmp_path: Path) -> None:
    code, figures = analyse(dataset_with_repeats, tmp_path, "--repeat_share=0.25")
    assert code == 0
    lines = {line["contexts_of"]: line for line in figures["figures"]["repeats"]}
    few, others = lines["few destinations"], lines["any destinations"]
    assert few["share"] == pytest.approx(0.25, abs=0.06)  # 4 σ of 1,000 draws
    assert few["share"] + others["share"] == pytest.approx(1)
    assert few["median"] > 0.8 > 0.7 > others["median"]


def test_repeats_are_those_of_the_decoded_measurements(dataset_with_repeats: Path) -> None:
    sampler = ProbeRowSampler(256, seed=1, repeat_share=0.5)
    row = ProbeRowDataSource(str(dataset_with_repeats))[0]
    contexts = sampler.contexts(row)
    batch = {key: np.stack([c.example[key] for c in contexts]) for key in BATCH_KEYS}
    found = repeats_of(parse(batch["targets"], batch["targets_segmentation"]))
    assert len({context.has_repeats for context in contexts}) == 2
    for example, share in enumerate(found.tolist()):
        (tokens,) = segments_of(batch, example)
        whole = [m for m in decoded(tokens)[0] if m.dst_addr is not None and m.rtt_ms is not None]
        assert share == pytest.approx(1 - len({m.dst_addr for m in whole}) / len(whole))


@pytest.mark.slow
def test_pictures_show_something(compact_dataset: Path, tmp_path: Path) -> None:
    analyse(compact_dataset, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*PICTURES, "figures.json"}
    for name in PICTURES:
        image = imread(tmp_path / name)
        assert image.shape[0] > 400 and image.shape[1] > 1000
        colors = np.unique((image[..., :3] * 255).astype(np.uint8).reshape(-1, 3), axis=0)
        assert len(colors) > 20, name
        assert 0.5 < (image[..., :3] == 1).all(axis=2).mean() < 0.99, name


@pytest.mark.slow
def test_small_rows_alone(small_dataset: Path, tmp_path: Path) -> None:
    code, figures = analyse(small_dataset, tmp_path)
    assert code == 0
    found = results(figures)
    absent = {name for name, result in found.items() if result == "not applicable"}
    large = {"num_contexts", "modes_large", "partial_share", "context_padding"}
    assert absent == {*large, "bytes_per_measurement"}
    assert found["modes_small"] == found["batch_padding"] == "pass"
    padding = {(x["of"], x["group"]): x for x in figures["figures"]["padding"]}
    assert padding["batches of build_dataset", "all"]["mean"] == 0
    assert padding["small rows, if not packed", "all"]["mean"] > 0.5
    assert figures["figures"]["strides"] == figures["figures"]["spans"] == []
    assert all((tmp_path / name).stat().st_size > 5000 for name in PICTURES)


@pytest.mark.slow
def test_same_seed_same_figures(compact_dataset: Path) -> None:
    def figures(seed: int) -> dict[str, Any]:
        return summarise(measure(str(compact_dataset), Extent(seed=seed, max_rows=5)))

    assert figures(0) == figures(0)
    assert figures(0) != figures(1)


@pytest.mark.slow
def test_test_split_and_crop_size(compact_dataset: Path, tmp_path: Path) -> None:
    code, figures = analyse(compact_dataset / "test", tmp_path, "--crop-size=256")
    assert code == 0
    assert figures["split"] == "test"
    assert "int32 [batch, 256]" in next(
        check["expectation"] for check in figures["checks"] if check["name"] == "shapes"
    )


@pytest.mark.slow
def test_some_shards_only(compact_dataset: Path, tmp_path: Path) -> None:
    code, figures = analyse(compact_dataset / "train/*_00001-*", tmp_path)
    assert code == 0
    assert results(figures)["row_count"] == "not applicable"


# --- what is measured is true -------------------------------------------------------------------


def test_figures_of_small_rows_agree_with_the_sampler(small_dataset: Path) -> None:
    figures = measure(str(small_dataset), Extent(seed=3, max_rows=30, num_batches=1))
    source, sampler = ProbeRowDataSource(str(small_dataset)), ProbeRowSampler(seed=3)
    padding, modes = [], []
    for number in figures.sampled["number"].tolist():
        row = source[number]
        for epoch in range(figures.epochs.small):
            examples = list(sampler.examples(row, epoch))
            padding += [float((e["targets_segmentation"] == 0).mean()) for e in examples]
            if len(row["measurements"]) >= MIN_MEASUREMENTS_FOR_MODE:
                modes.append(sampler.contexts(row, epoch)[0].mode)  # drawn by the same key
    assert figures.padded["padding"].tolist() == padding
    lines = {line["mode"]: line for line in summarise(figures)["modes"]}
    assert len(modes) >= 1000
    for name in MODE_NAMES:
        assert lines[name]["small_share"] == pytest.approx(modes.count(name) / len(modes))


def test_figures_of_large_rows_agree_with_the_sampler(arrow_dataset: Path) -> None:
    figures = measure(str(arrow_dataset), Extent(max_rows=12, num_batches=1))
    source, sampler = ProbeRowDataSource(str(arrow_dataset)), ProbeRowSampler(seed=0)
    spans = []
    for number in figures.sampled["number"][figures.sampled["size"] != SMALL].tolist():
        row = source[number]
        for epoch in range(figures.epochs.large):
            for context in sampler.contexts(row, epoch):
                first = row["measurements"][context.first]["event_time"]
                last = row["measurements"][context.first + context.window - 1]["event_time"]
                spans.append((last - first) / timedelta(seconds=1))
    assert figures.contexts["span_seconds"].tolist() == pytest.approx(spans)
    line = next(x for x in summarise(figures)["spans"] if x["group"] == "all")
    assert line["median_seconds"] == pytest.approx(np.median(spans))
    density = next(x for x in summarise(figures)["density"] if x["group"] == "all")
    assert density["tokens_none"] < density["tokens_partial"] < density["tokens_full"]


def test_rows_are_drawn_evenly_over_sizes_and_families() -> None:
    sizes = np.repeat([0, 1, 5], [900, 90, 10])
    families = np.tile([0, 1], 500)
    drawn = draw_rows(sizes, families, 100, seed=1)
    assert len(drawn) in (99, 100) and drawn[0] == 0 and (np.diff(drawn) > 0).all()
    counts = {
        (s, f): int(((sizes[drawn] == s) & (families[drawn] == f)).sum())
        for s in (0, 1, 5)
        for f in (0, 1)
    }
    assert counts[5, 0] == counts[5, 1] == 5
    assert all(20 <= counts[s, f] <= 25 for s in (0, 1) for f in (0, 1))
    assert np.array_equal(drawn, draw_rows(sizes, families, 100, seed=1))
    assert not np.array_equal(drawn, draw_rows(sizes, families, 100, seed=2))
    assert np.array_equal(draw_rows(sizes, families, 5000, seed=1), np.arange(1000))
    assert np.array_equal(draw_rows(sizes, families, 1, seed=1), [0])


def test_sizes_and_families(arrow_dataset: Path) -> None:
    rows = ProbeRowDataSource(str(arrow_dataset)).rows
    sampler = ProbeRowSampler()
    source = ProbeRowDataSource(str(arrow_dataset))
    sizes, families = size_classes(rows, 1024), families_of(rows)
    for number in range(len(rows)):
        row = source[number]
        n = len(row["measurements"])
        assert (sizes[number] == SMALL) == sampler.is_small(row)
        if sizes[number] != SMALL:
            assert SIZE_NAMES[sizes[number]] == ("≤ 100" if n <= 100 else "≤ 1,000")
        versions = {m["ip_version"] for m in row["measurements"]}
        versions.add(6 if ":" in row["src_addr"] else 4)
        assert families[number] == {(4,): 0, (6,): 1, (4, 6): 2}[tuple(sorted(versions))]


def test_bound_of_modes() -> None:
    assert binomial_bound(0.4, 1000) == pytest.approx(0.06197, abs=1e-5)


# --- what is wrong is found ---------------------------------------------------------------------


@pytest.mark.slow
def test_a_damaged_record(copy: DamagedDataset, tmp_path: Path) -> None:
    shard, at = copy.replace(copy.single(), b"no row at all", index=False)
    code, figures = analyse(copy.folder, tmp_path / "out", "--max_rows=1000")
    assert code == 1
    # The lane whose only row it is has nothing to give.
    assert failed(figures) == {"schema", "batch_padding"}
    check = next(check for check in figures["checks"] if check["name"] == "schema")
    assert f"{shard} record {at}" in check["measured"]


def test_no_row_can_be_read(copy: DamagedDataset, tmp_path: Path) -> None:
    for shard in copy.shards[:3]:
        copy.write(shard, [b"nothing"] * len(copy.read(shard)))
    copy.stamp(index=False)
    code, figures = analyse(copy.folder, tmp_path / "out")
    assert code == 1
    assert failed(figures) == {"schema", "batch_padding"}
    assert results(figures)["shapes"] == "not applicable"


@pytest.mark.slow
def test_a_row_out_of_order(copy: DamagedDataset, tmp_path: Path) -> None:
    def change(lists: dict[str, list]) -> None:
        lists["event_time"][1:-1] = lists["event_time"][1:-1][::-1]

    record = copy.hot()[1]
    copy.replace(record, edit(record, change))
    code, figures = analyse(copy.folder, tmp_path / "out", "--max_rows=1000")
    assert code == 1
    assert "row_order" in failed(figures)
    # Differences of time cannot be negative: an absolute time takes their place.
    assert failed(figures) <= {"row_order", "context_order"}


@pytest.mark.slow
def test_rows_larger_than_the_limit(copy: DamagedDataset, tmp_path: Path) -> None:
    copy.manifest(lambda values: values["options"].update(max_row_size_mb=0.01))
    code, figures = analyse(copy.folder, tmp_path / "out")
    assert code == 1
    assert failed(figures) == {"row_size"}


@pytest.mark.slow
def test_rows_that_need_no_split(copy: DamagedDataset, tmp_path: Path) -> None:
    copy.manifest(lambda values: values["options"].update(max_row_size_mb=8))
    code, figures = analyse(copy.folder, tmp_path / "out")
    assert code == 1
    assert failed(figures) == {"row_count"}


@pytest.mark.slow
def test_a_row_is_missing(copy: DamagedDataset, tmp_path: Path) -> None:
    copy.replace(copy.hot()[1])
    code, figures = analyse(copy.folder, tmp_path / "out")
    assert code == 1
    assert failed(figures) == {"row_count"}


def test_another_encoding_than_the_manifest_says(copy: DamagedDataset, tmp_path: Path) -> None:
    copy.manifest(lambda values: values["options"].update(measurement_encoding="compact"))
    code, figures = analyse(copy.folder, tmp_path / "out")
    assert code == 1
    assert "schema" in failed(figures)


@pytest.mark.parametrize(
    ("bound", "name"),
    [("MAX_CONTEXT_PADDING", "context_padding"), ("MAX_BATCH_PADDING", "batch_padding")],
)
def test_a_bound_that_cannot_be_kept(
    bound: str,
    name: str,
    compact_dataset: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(checklist, bound, 0.0)
    assert main([str(compact_dataset), *BRIEF]) == 1
    assert f"1 FAILED ({name})" in capsys.readouterr().out


@pytest.fixture(scope="session")
def batch(small_dataset: Path) -> dict[str, np.ndarray]:
    """Eight examples of a small row each, all partly padded."""
    return next(iter(build_dataset(DataConfig(str(small_dataset), batch_size=8, pack=False))))


def _shift_targets(batch: dict[str, np.ndarray]) -> None:
    batch["targets"] = batch["inputs"].copy()


def _fill_padding(batch: dict[str, np.ndarray]) -> None:
    batch["inputs"][batch["inputs_segmentation"] == 0] = 3


def _move_positions(batch: dict[str, np.ndarray]) -> None:
    batch["inputs_position"] = batch["targets_position"] = batch["inputs_position"] + 1


def _reverse_segments(batch: dict[str, np.ndarray]) -> None:
    for side in ("inputs", "targets"):
        batch[f"{side}_segmentation"] = batch[f"{side}_segmentation"][:, ::-1]


def _skip_a_segment(batch: dict[str, np.ndarray]) -> None:
    for side in ("inputs", "targets"):
        batch[f"{side}_segmentation"] = batch[f"{side}_segmentation"] * 2


@pytest.mark.parametrize(
    ("damage", "find", "words"),
    [
        (_shift_targets, target_fault, "the next input is"),
        (_fill_padding, target_fault, "padding is not zero"),
        (_move_positions, target_fault, "padding is not zero"),
        (_move_positions, position_fault, "from 0"),
        (_reverse_segments, position_fault, "padding at the end"),
        (_skip_a_segment, position_fault, "numbered"),
    ],
)
def test_faults_of_examples(
    damage: Callable[[dict], None],
    find: Callable[[dict], str | None],
    words: str,
    batch: dict[str, np.ndarray],
) -> None:
    assert find(batch) is None
    damaged = {name: values.copy() for name, values in batch.items()}
    damage(damaged)
    assert words in (find(damaged) or "")


def test_faults_of_shapes(batch: dict[str, np.ndarray]) -> None:
    assert sorted(batch) == sorted(BATCH_KEYS)
    assert shape_fault(batch, 8, 1024) is None
    assert shape_fault(batch, 8, 512) is not None
    wide = batch | {"inputs": batch["inputs"].astype(np.int64)}
    assert shape_fault(wide, 8, 1024) == "inputs is int64 [8, 1024]"
    assert shape_fault({"inputs": batch["inputs"]}, 8, 1024) == "the arrays are inputs"


def test_faults_of_decoding(batch: dict[str, np.ndarray]) -> None:
    longest = int((batch["inputs_segmentation"] > 0).sum(axis=1).argmax())
    tokens = next(segments_of(batch, longest))
    measurements, fault = decoded(tokens)
    assert fault is None and len(measurements) > 5
    segment = parse(batch["targets"], batch["targets_segmentation"]).segments[longest]
    num_whole, end = segment["num_measurements"] - 1, segment["whole_tokens"]
    assert num_whole == len(measurements) - 1 and len(decoded(tokens[:end])[0]) == num_whole
    assert "not MEASUREMENT_START" in (decoded(tokens[1:])[1] or "")
    assert len(parse(batch["targets"][:0], batch["targets_segmentation"][:0]).segments) == 0


def test_faults_of_contexts() -> None:
    def at(*seconds: int | None) -> list[Measurement]:
        return [Measurement(src_addr="192.0.2.1", event_time=second) for second in seconds]

    assert time_fault(at(5, None, 5, 7)) is None
    assert time_fault(at(5, None, 4)) == "second 4 comes after 5"
    good: tuple[str, int, int] = ("192.0.2.1", 5, 9)
    assert context_fault(at(5, 9, None), *good, "full") is None
    assert context_fault(at(5, None, None), *good, "full") is not None
    assert context_fault(at(None, None), *good, "none") is None
    assert context_fault(at(None, 6), *good, "none") is not None
    assert context_fault(at(10), *good, None) is not None
    assert context_fault(at(5), "192.0.2.2", 5, 9, None) is not None


def test_a_tally_keeps_a_few_faults() -> None:
    tally = Tally()
    tally.take(None, 100)
    for number in range(50):
        tally.take(f"fault {number}")
    assert (tally.num_checked, tally.num_faults, len(tally.faults)) == (150, 50, 5)


# --- the command --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--max_rows=0"], "--max_rows=0 is under 1"),
        (["--num-batches=-1"], "--num_batches=-1"),
        (["--crop_size=10"], "crop_size is 10: it must be 64 or more"),
        (["--bogus"], "unrecognized arguments: --bogus"),
    ],
)
def test_flags_that_do_not_suit(
    flags: list[str], words: str, compact_dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(compact_dataset), *flags]) == 2
    captured = capsys.readouterr()
    assert words in captured.err and captured.err.count("\n") == 1 and not captured.out


def test_no_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert "no finished dataset" in capsys.readouterr().err


def test_output_is_a_file(
    compact_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main([str(compact_dataset), f"--output={tmp_path}/file"]) == 2
    assert "cannot write into" in capsys.readouterr().err


def test_without_matplotlib(
    compact_dataset: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main([str(compact_dataset), *BRIEF, f"--output={tmp_path}"]) == 2
    assert "pip install 'probeline[report]'" in capsys.readouterr().err


@pytest.mark.slow
def test_needs_neither_beam_nor_matplotlib_for_tables(compact_dataset: Path) -> None:
    script = (
        "import sys; from training.analyze_padding import main; "
        f"code = main([{str(compact_dataset)!r}, '--max_rows=5', '--num_batches=1']); "
        "sys.exit(code + 10 * ('apache_beam' in sys.modules) + 20 * ('matplotlib' in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True).returncode == 0
