"""The data card: it tells the truth, makes the dataset again, and leaves other people's files."""

import dataclasses
import hashlib
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import DatasetCard, DatasetCardData

from beam_pipeline.dataset.arrow_record import RECORD_SCHEMA
from beam_pipeline.dataset.data_card import (
    CARD_HEAD,
    CARD_HEADS,
    CARD_NAME,
    KEYWORDS,
    Totals,
    command_of,
    data_card,
    read_totals,
    write_card,
)
from beam_pipeline.dataset.manifest import SPLITS, write_success
from beam_pipeline.dataset.row_codec import MEASUREMENT_SCHEMA
from beam_pipeline.dataset.rows import open_dataset
from beam_pipeline.jobs.output_folder import taken
from beam_pipeline.main import main
from beam_pipeline.probe_rows.options import parse
from beam_pipeline.probe_rows.switch import DATASET_FILES
from beam_pipeline.verify import __main__ as verify
from tests.support.helpers import measurements_table, reference_rows
from tests.support.job_runs import files_of
from tests.support.repository import ROOT

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
        index = pq.read_table(dataset / split / "rows.parquet").to_pylist()
        own = [one for probe in {line["src_addr"] for line in index} for one in expected[probe]]
        failed = sum(rtt < 0 for _, _, rtt in own)
        ipv6 = sum(destination >> 32 != 0xFFFF for _, destination, _ in own)
        first = min(line["first_timestamp"] for line in index)
        last = max(line["last_timestamp"] for line in index)
        shards = list(dataset.glob(f"{split}/*.arrayrecord"))
        assert {name: cells[place] for name, cells in rows.items() if len(cells) == 2} == {
            "": split,
            "probes": str(len({line["src_addr"] for line in index})),
            "of these with several rows": str(sum(line["row_index"] == 1 for line in index)),
            "rows": str(len(index)),
            "measurements": f"{len(own):,}",
            "bytes": f"{sum(path.stat().st_size for path in shards):,}",
            "shards": str(len(shards)),
            "first measurement, UTC": f"{first:%Y-%m-%d %H:%M:%S}",
            "last measurement, UTC": f"{last:%Y-%m-%d %H:%M:%S}",
            "failed pings": f"{100 * failed / len(own):.2f} %",
            "IPv6 destinations": f"{100 * ipv6 / len(own):.2f} %",
            "measurements of the largest row": f"{max(line['n_measurements'] for line in index):,}",
            "bytes of the largest row": f"{max(line['num_bytes'] for line in index):,}",
        }
    assert rows["`src_addr_invalid`"] == ["4"]
    options = open_dataset(str(dataset)).manifest.options
    for name, value in options.items():
        assert rows[name] == [f"`{value}`"]


def test_command_of_the_card_reproduces_the_dataset(
    dataset: Path, tmp_path: Path, monkeypatch
) -> None:
    card = (dataset / CARD_NAME).read_text("utf-8")
    (command,) = re.findall(r"^probeline rows .*$", card, re.MULTILINE)
    words = shlex.split(command)
    assert words[:2] == ["probeline", "rows"]
    monkeypatch.chdir(tmp_path)
    assert main(words[2:]) == 0
    again = tmp_path / "DATASET"
    assert files_of(again) == files_of(dataset)
    for name in (CARD_NAME, "croissant.json", "manifest.json"):
        assert (again / name).read_bytes() == (dataset / name).read_bytes()
    assert verify.main([str(again)]) == 0


def test_command_omits_options_of_the_run_and_the_key_path(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(bytes(range(32)))
    options, _ = parse(
        [
            *("--input=a b", "--input=gs://x/*.parquet", "--output=out", "--overwrite", "--debug"),
            *("--inline_bytes=7", "--split_seed=3", "--runner=DirectRunner", "--train-ratio=0.9"),
            *("--anonymize=prefix_preserving", f"--anonymize_key_file={tmp_path}/key"),
        ]
    )
    common = "--input 'a b' --input 'gs://x/*.parquet' --output DATASET"
    anonymized = "--anonymize=prefix_preserving --anonymize_key_file=KEY_FILE --split_seed=3"
    assert command_of(options) == f"probeline rows {common} {anonymized}"


def test_hugging_face_metadata(dataset: Path) -> None:
    num_rows, category = 10**12 - 1, "100B<n<1T"
    manifest = open_dataset(str(dataset)).manifest
    train, test = (
        dataclasses.replace(manifest.splits[name], num_records=count)
        for name, count in (("train", num_rows), ("test", 0))
    )
    changed = dataclasses.replace(manifest, splits={"train": train, "test": test})
    card = DatasetCard(data_card(changed, dict.fromkeys(SPLITS, Totals()), ""))
    files = [{"split": "train", "path": "train/rows.parquet"}]  # of splits with rows
    assert card.data.to_dict() == {
        "pretty_name": "3,000 ping measurements of 15 probes",
        "task_categories": ["time-series-forecasting"],
        "tags": list(KEYWORDS),
        "configs": [{"config_name": "row_index", "data_files": files}],
        "size_categories": [category],
    }
    assert (dataset / files[0]["path"]).is_file()
    assert f"'{category}'" in (DatasetCardData.__doc__ or "")  # which lists them


# --- other runs, other people -------------------------------------------------------------------


@pytest.mark.parametrize("head", CARD_HEADS)
def test_card_of_a_dead_run_is_removed(head: str, tmp_path: Path) -> None:
    (tmp_path / CARD_NAME).write_text(f"{head}\n\n# Some\n")
    (tmp_path / "croissant.json").write_text("{}")
    (tmp_path / f"{CARD_NAME}.123.tmp").write_text("half")
    with taken(str(tmp_path), overwrite=False, files=DATASET_FILES):
        assert [path.name for path in tmp_path.iterdir()] == [".probeline-temp"]


@pytest.mark.parametrize("text", ["---\n---\n", f"About\n{CARD_HEAD}\n"])
def test_foreign_readme_is_kept(text: str, dataset: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(dataset, tmp_path / "rows")
    (copied / CARD_NAME).write_text(text)
    write_card(str(copied), open_dataset(str(copied)).manifest, read_totals(str(copied)), "")
    assert (copied / CARD_NAME).read_text() == text
    assert verify.main([str(copied)]) == 0


# --- croissant.json -------------------------------------------------------------------------------


KINDS = ("plain", "sampled", "appended")


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A dataset with dead letters, a sample in arrow and TFRecord, and one that was added to."""
    folder = tmp_path_factory.mktemp("croissant")
    table = measurements_table(1200, seed=3, num_probes=12)
    bad = table.slice(0, 2).set_column(1, "src_addr", pa.array(["nowhere"] * 2)).cast(table.schema)
    pq.write_table(pa.concat_tables([table.slice(0, 600), bad]), folder / "old.parquet")
    pq.write_table(table.slice(600), folder / "new.parquet")

    def make(name: str, *flags: str) -> Path:
        common = (f"--output={folder / name}", "--max_row_size_mb=0.01", "--train_ratio=0.6")
        assert main([*common, *flags]) == 0
        return folder / name

    old, new = (f"--input={folder}/{name}.parquet" for name in ("old", "new"))
    sample = ("--sample_probes=0.7", "--measurement_encoding=arrow", "--output_format=tfrecord")
    made = {"plain": make("plain", old), "sampled": make("sampled", old, new, *sample)}
    shutil.copytree(made["plain"], folder / "appended")
    return {**made, "appended": make("appended", new, "--append")}


def croissant_of(dataset: Path) -> Any:
    import mlcroissant  # takes a second, which other test processes need not spend

    return mlcroissant.Dataset(dataset / "croissant.json")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_croissant_is_valid_and_yields_the_records(kind: str, datasets: dict[str, Path]) -> None:
    dataset = datasets[kind]
    described, manifest = croissant_of(dataset), open_dataset(str(dataset)).manifest
    assert described.metadata.ctx.is_v1_1() and not described.metadata.ctx.issues.errors
    missing = {
        re.findall(r'"\S+/(\w+)" is recom', text)[0]
        for text in described.metadata.ctx.issues.warnings
    }
    assert missing == {"citeAs", "license"}  # only who publishes it knows them
    assert described.metadata.version == f"{len(manifest.generations)}.0.0"
    for name, split in manifest.splits.items():
        lines = pq.read_table(dataset / name / "rows.parquet").to_pylist()
        records = list(described.records(f"{name}_row_index"))
        assert len(lines) == split.num_records > 0
        for line, record in zip(lines, records, strict=True):
            found = {key.partition("/")[2]: value for key, value in record.items()}
            assert found == {**line, "src_addr": line["src_addr"].encode()}
    counts = ("num_probes", "num_records", "num_measurements", "num_bytes")
    for record in described.records("splits"):
        split = manifest.splits[record["splits/name"]]
        assert {f"splits/{name}": getattr(split, name) for name in counts}.items() <= record.items()


@pytest.mark.slow
def test_croissant_lists_files_and_fields(datasets: dict[str, Path]) -> None:
    dataset = datasets["plain"]
    manifest = open_dataset(str(dataset)).manifest
    metadata = croissant_of(dataset).metadata
    files = {file.id: file for file in metadata.file_objects}
    for path, file in files.items():
        assert file.content_url == path
        assert file.sha256 == hashlib.sha256((dataset / path).read_bytes()).hexdigest()
    assert set(files) == {"manifest.json", "train/rows.parquet", "test/rows.parquet"}
    sets = {each.id: each.includes for each in metadata.file_sets}
    named = {path.relative_to(dataset) for each in sets.values() for glob in each or ()
             for path in dataset.glob(glob)}  # fmt: skip
    listed = [shard.path for split in manifest.splits.values() for shard in split.shards]
    assert named == {Path(path) for path in listed} | {
        Path(file.path) for file in manifest.dead_letter_files
    }
    (rows,) = (each for each in metadata.record_sets if each.id == "rows")
    assert [field.id for field in rows.fields] == [
        f"rows/{name}" for name in ("split", *RECORD_SCHEMA.names)
    ]
    (measurements,) = (field for field in rows.fields if field.sub_fields)
    assert measurements.is_array and [field.id for field in measurements.sub_fields] == [
        f"rows/measurements/{name}" for name in MEASUREMENT_SCHEMA.names
    ]
    assert all(field.description for each in metadata.record_sets for field in each.fields)


# --- what verify says ---------------------------------------------------------------------------


def rewrite(dataset: Path, name: str, old: str, new: str) -> None:
    text = (dataset / name).read_text()
    assert text.count(old) >= 1
    (dataset / name).write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("README.md", "| measurements | ", "| measurements | 1", "it says '| measurements | 1"),
        ("croissant.json", '"name": "600', '"name": "700', "it says '700 ping measurements"),
        ("croissant.json", '"distribution": [', '"distribution": [7,', "it cannot be read"),
        ("croissant.json", 'splits/num_bytes": ', 'splits/num_bytes": 9', "num_bytes of test is"),
        ("croissant.json", '"sha256": "', '"sha256": "0', "sha256 of manifest.json is"),
        ("croissant.json", None, None, "it is missing"),
    ],
)
def test_description_contradicts_the_manifest(
    name: str, old: str | None, new: str, said: str, datasets, tmp_path: Path, capsys
) -> None:
    dataset = Path(shutil.copytree(datasets["plain"], tmp_path / "rows"))
    if old is None:
        (dataset / name).unlink()
    else:
        rewrite(dataset, name, old, new)
    assert verify.main([str(dataset)]) == 1
    lines = capsys.readouterr().out.splitlines()
    faults = [line for line in lines if re.match(r"[\w]+: ", line)]
    assert faults and all(line.startswith(f"descriptions: {name}: ") for line in faults)
    assert any(said in line for line in faults), faults


def test_user_additions_to_descriptions(datasets: dict[str, Path], tmp_path: Path) -> None:
    dataset = Path(shutil.copytree(datasets["plain"], tmp_path / "rows"))
    rewrite(dataset, "README.md", "\ntags:", '\nlicense: "cc-by-4.0"\ntags:')
    rewrite(dataset, "README.md", "\n# 600 ping measurements of 12 probes", "\n# Ours")
    told = json.loads((dataset / "croissant.json").read_bytes())
    told |= {"license": "https://spdx.org/licenses/CC-BY-4.0.html", "name": "Ours", "url": "x:y"}
    told["distribution"].append({"@type": "cr:FileObject", "@id": "more", "contentUrl": "more"})
    (dataset / "croissant.json").write_text(json.dumps(told))
    assert verify.main([str(dataset)]) == 0


def test_older_dataset_without_descriptions(datasets: dict[str, Path], tmp_path: Path) -> None:
    dataset = Path(shutil.copytree(datasets["plain"], tmp_path / "rows"))
    text = (dataset / "manifest.json").read_text()
    data = re.sub(r',\s*"(index_)?sha256": "\w+"', "", text).encode()
    write_success(str(dataset), data)
    (dataset / "croissant.json").unlink()
    (dataset / "README.md").unlink()
    assert b"sha256" not in data and verify.main([str(dataset)]) == 0


# --- the schema of the manifest -----------------------------------------------------------------


def test_manifests_match_the_published_schema(datasets: dict[str, Path]) -> None:
    schema = json.loads((ROOT / "docs/manifest.schema.json").read_bytes())
    check = jsonschema.Draft202012Validator(schema)
    for dataset in datasets.values():
        told = json.loads((dataset / "manifest.json").read_bytes())
        assert list(check.iter_errors(told)) == []
    shard = told["splits"]["train"]["shards"][0]
    for part, key, value in (
        (shard, "path", "../secret"),
        (told["options"], "train_ratio", 2),
        (told["splits"], "test", None),
    ):
        before = part[key]
        part[key] = value
        assert list(check.iter_errors(told)), (key, value)
        part[key] = before
