"""The data card: it tells the truth, makes the dataset again, and leaves other people's files."""

import dataclasses
import re
import shlex
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from huggingface_hub import DatasetCard, DatasetCardData
from markdown_it import MarkdownIt

from beam_pipeline.dataset.data_card import (
    CARD_HEAD,
    CARD_HEADS,
    CARD_NAME,
    SplitTotals,
    command_of,
    data_card,
    read_totals,
    write_card,
)
from beam_pipeline.dataset.manifest import SPLITS
from beam_pipeline.dataset.rows import open_dataset
from beam_pipeline.jobs.output_folder import taken
from beam_pipeline.main import main
from beam_pipeline.probe_rows.options import parse
from beam_pipeline.probe_rows.switch import DATASET_FILES
from beam_pipeline.verify import __main__ as verify
from tests.conftest import Gcs
from tests.support.helpers import measurements_table, reference_rows
from tests.support.job_runs import files_of

FLAGS = ("--max_row_size_mb=0.01", "--num_shards=2", "--train_ratio=0.7", "--columns=rtt=rtt_ms")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("card") / "it's in"
    folder.mkdir()
    table = measurements_table(3000, seed=8, num_probes=15)
    names = ["rtt_ms" if name == "rtt" else name for name in table.column_names]
    pq.write_table(table.rename_columns(names), folder / "good.parquet")
    bad = [{**row, "src_addr": "nowhere"} for row in table.slice(0, 4).to_pylist()]
    bad_table = type(table).from_pylist(bad, table.schema).rename_columns(names)
    pq.write_table(bad_table, folder / "bad.parquet")
    return folder


def make(source: Path, output: Path | str, *flags: str) -> int:
    return main([f"--input={source}/*.parquet", f"--output={output}", *FLAGS, *flags])


@pytest.fixture(scope="module")
def dataset(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("dataset") / "rows"
    assert make(source, output) == 0
    return output


def tables_of(card: str) -> dict[str, list[str]]:
    """Returns the rows of all tables by their first cell."""
    rows = {}
    for line in card.splitlines():
        if line.startswith("| ") and not line.startswith("| ---"):
            first, *cells = (cell.strip() for cell in line.strip("|").split(" |"))
            rows[first] = cells
    return rows


def test_card_numbers(dataset: Path) -> None:
    card = (dataset / CARD_NAME).read_text("utf-8")
    assert card.startswith(CARD_HEAD)
    assert "# 3,000 ping measurements of 15 probes" in card
    rows = tables_of(card)
    expected = reference_rows(measurements_table(3000, seed=8, num_probes=15))
    for place, split in enumerate(("train", "test")):
        index = pq.read_table(dataset / split / "rows.parquet")
        own = [one for probe in set(index["src_addr"].to_pylist()) for one in expected[probe]]
        failed = sum(rtt < 0 for _, _, rtt in own)
        ipv6 = sum(destination >> 32 != 0xFFFF for _, destination, _ in own)
        assert rows["measurements"][place] == f"{len(own):,}"
        assert rows["probes"][place] == str(len(set(index["src_addr"].to_pylist())))
        assert rows["failed pings"][place] == f"{100 * failed / len(own):.2f} %"
        assert rows["IPv6 destinations"][place] == f"{100 * ipv6 / len(own):.2f} %"
        largest = max(index["n_measurements"].to_pylist())
        assert rows["measurements of the largest row"][place] == f"{largest:,}"
        first = min(index["first_timestamp"].to_pylist())
        assert rows["first measurement, UTC"][place] == f"{first:%Y-%m-%d %H:%M:%S}"
        several = [i for i in index["row_index"].to_pylist() if i == 1]
        assert rows["of these with several rows"][place] == str(len(several))
    assert rows["`src_addr_invalid`"] == ["4"]
    options = open_dataset(str(dataset)).manifest.options
    for name, value in options.items():
        assert rows[name] == [f"`{value}`"]


def test_command_of_the_card_reproduces_the_dataset(
    dataset: Path, tmp_path: Path, monkeypatch
) -> None:
    card = (dataset / CARD_NAME).read_text("utf-8")
    (command,) = re.findall(r"^python -m beam_pipeline\.main .*$", card, re.MULTILINE)
    words = shlex.split(command)
    assert words[:3] == ["python", "-m", "beam_pipeline.main"]
    monkeypatch.chdir(tmp_path)
    assert main(words[3:]) == 0
    again = tmp_path / "DATASET"
    assert files_of(again) == files_of(dataset)
    for name in (CARD_NAME, "croissant.json", "manifest.json"):
        assert (again / name).read_bytes() == (dataset / name).read_bytes()
    assert verify.main([str(again)]) == 0


def test_command_omits_options_of_the_run(tmp_path: Path) -> None:
    options, _ = parse(
        [
            *("--input=a b", "--input=gs://x/*.parquet", "--output=out", "--overwrite", "--debug"),
            *("--inline_bytes=7", "--split_seed=3", "--runner=DirectRunner", "--train-ratio=0.9"),
        ]
    )
    assert command_of(options) == (
        "python -m beam_pipeline.main --input 'a b' --input 'gs://x/*.parquet' --output DATASET "
        "--split_seed=3"
    )


def test_command_hides_the_key_path(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(bytes(range(32)))
    options, _ = parse(
        ["--input=a", "--output=o", "--anonymize=prefix_preserving", f"--anonymize_key_file={key}"]
    )
    command = command_of(options)
    assert str(key) not in command
    assert command.endswith(" --anonymize=prefix_preserving --anonymize_key_file=KEY_FILE")


def test_hugging_face_metadata(dataset: Path) -> None:
    card = DatasetCard.load(dataset / CARD_NAME)
    told = card.data.to_dict()
    assert told == {
        "pretty_name": "3,000 ping measurements of 15 probes",
        "task_categories": ["time-series-forecasting"],
        "tags": ["ping", "round-trip time", "latency", "network measurement", "time series"],
        "configs": [
            {
                "config_name": "row_index",
                "data_files": [
                    {"split": "train", "path": "train/rows.parquet"},
                    {"split": "test", "path": "test/rows.parquet"},
                ],
            }
        ],
        "size_categories": ["n<1K"],  # rows, as the viewer counts; the license is not known
    }
    assert all((dataset / file["path"]).is_file() for file in told["configs"][0]["data_files"])


@pytest.mark.parametrize(
    ("num_rows", "category"),
    [
        (0, "n<1K"),
        (999, "n<1K"),
        (1000, "1K<n<10K"),
        (10**12 - 1, "100B<n<1T"),
        (10**12, "n>1T"),
    ],
)
def test_hugging_face_size_category(num_rows: int, category: str, dataset: Path) -> None:
    manifest = open_dataset(str(dataset)).manifest
    train = dataclasses.replace(manifest.splits["train"], num_records=num_rows)
    test = dataclasses.replace(manifest.splits["test"], num_records=0)
    changed = dataclasses.replace(manifest, splits={"train": train, "test": test})
    card = DatasetCard(data_card(changed, dict.fromkeys(SPLITS, SplitTotals()), ""))
    assert card.data.to_dict()["size_categories"] == [category]
    assert f"'{category}'" in (DatasetCardData.__doc__ or "")  # which lists them
    files = [file for config in card.data.to_dict()["configs"] for file in config["data_files"]]
    assert [file["split"] for file in files] == (["train"] if num_rows else [])


def test_backticks_in_the_command(dataset: Path, tmp_path: Path) -> None:
    manifest = open_dataset(str(dataset)).manifest
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        data = (dataset / split / "rows.parquet").read_bytes()
        (tmp_path / split / "rows.parquet").write_bytes(data)
    write_card(str(tmp_path), manifest, read_totals(str(tmp_path)), "a ```` b")
    fences = [
        token.content
        for token in MarkdownIt().parse((tmp_path / CARD_NAME).read_text())
        if token.type == "fence"
    ]
    assert fences[0] == "a ```` b\n"


# --- other runs, other people -------------------------------------------------------------------


@pytest.mark.parametrize("head", CARD_HEADS)
def test_card_of_a_dead_run_is_removed(head: str, tmp_path: Path) -> None:
    (tmp_path / CARD_NAME).write_text(f"{head}\n\n# Some\n")
    (tmp_path / "croissant.json").write_text("{}")
    (tmp_path / f"{CARD_NAME}.123.tmp").write_text("half")
    with taken(str(tmp_path), overwrite=False, files=DATASET_FILES):
        assert [path.name for path in tmp_path.iterdir()] == [".probeline-temp"]


@pytest.mark.slow
def test_foreign_readme_is_kept(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "rows"
    output.mkdir()
    for text in (
        "# Mine\n",
        "---\n---\n",
        f"About <!-- Data card by Probeline -->\n{CARD_HEAD}\n",
        "",
    ):
        (output / CARD_NAME).write_text(text)
        assert make(source, output, "--overwrite") == 0
        assert (output / CARD_NAME).read_text() == text
        assert verify.main([str(output)]) == 0


def test_card_on_gcs(source: Path, dataset: Path, gcs: Gcs) -> None:
    """A new run replaces its own card, not somebody else's."""
    from beam_pipeline.storage import gcs as storage

    bucket = gcs.make_bucket()
    assert make(source, f"{bucket}/rows") == 0
    assert storage.read(f"{bucket}/rows/{CARD_NAME}") == (dataset / CARD_NAME).read_bytes()
    assert make(source, f"{bucket}/rows", "--overwrite", "--split_seed=5") == 0
    assert b"--split_seed=5" in (storage.read(f"{bucket}/rows/{CARD_NAME}") or b"")
    with storage.create(f"{bucket}/other/{CARD_NAME}") as file:
        file.write(b"# Mine\n")
    assert make(source, f"{bucket}/other") == 0
    assert storage.read(f"{bucket}/other/{CARD_NAME}") == b"# Mine\n"
