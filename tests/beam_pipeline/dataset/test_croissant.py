"""croissant.json, as the reader of MLCommons takes it, and README.md: both tell the truth."""

import datetime
import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.dataset.arrow_record import RECORD_SCHEMA
from beam_pipeline.dataset.manifest import write_success
from beam_pipeline.dataset.row_codec import MEASUREMENT_SCHEMA
from beam_pipeline.dataset.rows import open_dataset
from beam_pipeline.main import main
from beam_pipeline.verify import __main__ as verify
from tests.support.helpers import measurements_table
from tests.support.repository import ROOT

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


def test_croissant_detects_a_changed_file(datasets: dict[str, Path], tmp_path: Path) -> None:
    dataset = Path(shutil.copytree(datasets["plain"], tmp_path / "rows"))
    path = dataset / "train" / "rows.parquet"
    pq.write_table(pq.read_table(path), path, compression="none")
    with pytest.raises(Exception, match=r"Download\(train/rows.parquet\)") as refusal:
        list(croissant_of(dataset).records("train_row_index"))
    assert "is not identical with the reference" in str(refusal.value.__cause__)


@pytest.mark.parametrize("kind", KINDS)
def test_croissant_lists_files_and_fields(kind: str, datasets: dict[str, Path]) -> None:
    dataset = datasets[kind]
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


def test_responsible_ai_fields_equal_the_card(datasets: dict[str, Path]) -> None:
    for dataset in datasets.values():
        told = json.loads((dataset / "croissant.json").read_bytes())
        card = (dataset / "README.md").read_text()
        (addresses,) = told["rai:personalSensitiveInformation"]
        for text in (addresses, *told["rai:dataLimitations"]):
            assert f"\n- {text}\n" in card
        indexes = [pq.read_table(dataset / name / "rows.parquet") for name in ("train", "test")]
        first = min(time for index in indexes for time in index["first_timestamp"].to_pylist())
        last = max(time for index in indexes for time in index["last_timestamp"].to_pylist())
        span = [
            datetime.datetime.fromisoformat(text) for text in told["rai:dataCollectionTimeframe"]
        ]
        assert span == [time.replace(tzinfo=datetime.UTC) for time in (first, last)]


# --- what verify says ---------------------------------------------------------------------------


def rewrite(dataset: Path, name: str, old: str, new: str) -> None:
    text = (dataset / name).read_text()
    assert text.count(old) >= 1
    (dataset / name).write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("README.md", "| probes |", "| Probes |", "'| probes | 5 | 7 |', it lacks it"),
        ("README.md", "| measurements | ", "| measurements | 1", "it says '| measurements | 1"),
        ("croissant.json", '"name": "600', '"name": "700', "it says '700 ping measurements"),
        ("croissant.json", 'splits/num_bytes": ', 'splits/num_bytes": 9', "num_bytes of test is"),
        ("croissant.json", '"sha256": "', '"sha256": "0', "sha256 of manifest.json is"),
        ("croissant.json", "splits/num_records", "n", "num_records of train is"),
        ("croissant.json", '"distribution": [', '"distribution": [7,', "it cannot be read"),
        ("croissant.json", None, None, "it is missing"),
        ("README.md", None, None, "it is missing"),
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


@pytest.mark.parametrize("kind", KINDS)
def test_manifests_match_the_published_schema(kind: str, datasets: dict[str, Path]) -> None:
    schema = json.loads((ROOT / "docs/manifest.schema.json").read_bytes())
    check = jsonschema.Draft202012Validator(schema)
    told = json.loads((datasets[kind] / "manifest.json").read_bytes())
    assert list(check.iter_errors(told)) == []
    shard = told["splits"]["train"]["shards"][0]
    for part, key, value in (
        (shard, "path", "../secret"),
        (shard, "crc32c", "12"),
        (told["options"], "train_ratio", 2),
        (told, "format_version", 2),
        (told["splits"], "test", None),
    ):
        before = part[key]
        part[key] = value
        assert list(check.iter_errors(told)), (key, value)
        part[key] = before
    del told["splits"]["test"]
    assert list(check.iter_errors(told))
