"""The commands and the code of the pages, executed as they are printed.

tests/support/docs_commands.py has the list. What a page presumes, such as data/*.parquet, is made
here, small. Some blocks are changed before they run: smaller numbers, a bucket of the emulator, a
dry run in place of an installation. The commands for Google's services are in test_docs_google.py.
"""

import ast
import gzip
import json
import os
import re
import shutil
from collections import Counter
from importlib.resources import files
from pathlib import Path

import duckdb
import pytest

from benchmarks.engine_servers import free_port, running_server
from tests.support import documents
from tests.support.clean_environment import copy_of_the_project
from tests.support.clean_environment import tensorflow as tensorflow
from tests.support.docs_commands import (
    EXECUTED,
    NOT_EXECUTED,
    Desk,
    all_blocks,
    check_call,
    listed,
    taken,
)
from tests.support.docs_commands import data as data
from tests.support.docs_commands import desk as desk
from tests.support.engines import Gcs, flink_is_built, missing

ROOT = documents.ROOT


# --- the list -------------------------------------------------------------------------------------


def test_every_block_is_in_the_list_once() -> None:
    begun = Counter()
    for block in all_blocks():
        starts = [start for start in listed(block.page) if block.text.startswith(start)]
        where = f"{block.page}:{block.line}"
        assert len(starts) == 1, f"{where} is in tests/support/docs_commands.py as {starts}"
        begun[block.page, starts[0]] += 1
    wanted = {(page, start) for page in {*EXECUTED, *NOT_EXECUTED} for start in listed(page)}
    assert set(begun) == wanted and begun.total() == len(wanted), begun


def test_the_tests_of_the_list_are_there() -> None:
    for test in {test for tests in EXECUTED.values() for test in tests.values()}:
        file, name = test.split("::")
        assert f"\ndef {name}(" in (ROOT / "tests" / file).read_text(), test


def test_make_knows_the_targets_that_are_named() -> None:
    text = "\n".join(code for page in documents.pages() for code in documents.code(page))
    targets = set(re.findall(r"^(?:[A-Z]+=\S+ |[A-Z]+=\"[^\"]*\" )*make ([a-z-]+)\b", text, re.M))
    assert {"demo", "test", "setup", "quality", "bench"} <= targets
    phony = re.findall(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.M)[0].split()
    assert targets <= set(phony)


# Finds out what would be installed, in an environment of the tests' own, and installs nothing.
LOOKING_PIP = 'exec python -m pip "$1" --dry-run --quiet "${@:2}"'


# --- what the pages presume -----------------------------------------------------------------------


def write_texts(folder: Path) -> None:
    """Writes a training corpus and two evaluation sets, one of whose rows is in the corpus."""
    passage = "the quick brown fox jumps over the lazy dog near the old stone bridge every morning"
    files = {
        "corpus/a.jsonl": [f"before {passage} after", "nothing that anybody looks for"],
        "eval/mmlu/test.jsonl": [passage, "a question that is in no corpus at all, as it seems"],
        "eval/test.jsonl": ["so many words that were never said by anyone in this order before"],
    }
    for name, texts in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps({"id": f"{n}", "text": text}) for n, text in enumerate(texts)]
        path.write_text("\n".join(lines) + "\n")


def shards(dataset: Path) -> dict[str, bytes]:
    found = [*dataset.glob("*/*_shard_*"), *dataset.glob("*/rows.parquet")]
    assert found and (dataset / "_SUCCESS").exists()
    return {str(path.relative_to(dataset)): path.read_bytes() for path in found}


# --- on this machine ------------------------------------------------------------------------------


@pytest.mark.slow
def test_your_data(desk: Desk) -> None:
    commands, row, batches, batches_too, decoded, stream, query, described = taken("test_your_data")
    desk.sh(commands)
    told = json.loads((desk.folder / "rows/manifest.json").read_bytes())
    assert told["counts"]["rows_read"] == 1_000_000
    assert "<html" in (desk.folder / "report.html").read_text()
    printed = desk.python(
        row,
        "record = reader.read([0])[0]",
        "assert row.to_arrow().num_rows == row.n_measurements > 0",
        stream,
        "assert row['n_measurements'] > 0 and row['row_index'] == 0",
        batches,
        "assert batch['inputs'].shape == (256, 1024) and batch['inputs'].dtype == 'int32'",
        batches_too,
        "assert len(batch) == 6 and {a.shape for a in batch.values()} == {(256, 1024)}",
        decoded,
        "print(len(measurements), measurements[0])",
    )
    assert re.match(r"\d+ Measurement\(src_addr='[\d.:a-f]+', dst_addr=", printed)
    assert len(desk.python(described).splitlines()) == told["splits"]["train"]["num_records"]
    connection = duckdb.connect()
    connection.execute(f"SET file_search_path = '{desk.folder}'")
    counts = connection.execute(query).fetchall()
    assert len(counts) == 5200 and counts[0][1] >= counts[-1][1] > 0


def test_mixtures_and_weights(desk: Desk) -> None:
    mixture, weights = taken("test_mixtures_and_weights")
    for seed, name in enumerate(("a", "b")):
        desk.sh(
            f"python -m beam_pipeline.generate --output {name} --num_measurements 60000 "
            f"--num_probes 1000 --seed {seed}\n"
            f"python -m beam_pipeline.main --input '{name}/*.parquet' --output rows/{name}"
        )
    desk.python(
        "from training.dataset import DataConfig, build_dataset",
        mixture.replace("gs://data/rows", "rows/b"),
        "assert next(iter(dataset))['inputs'].shape == (256, 1024)",
        weights.replace("rows/train", "rows/a/train"),
        "assert next(iter(dataset))['inputs'].shape == (256, 1024)",
    )


def test_array_record_for_beam(gcs: Gcs) -> None:
    """Each statement with a separate pipeline: the second reads what the first writes."""
    import apache_beam as beam
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner
    from apache_beam.testing.util import assert_that, equal_to

    (block,) = taken("test_array_record_for_beam")
    assert "gs://bucket/" in block
    words = [f"{number:08} word".encode() for number in range(50)]
    names: dict = {}
    statements = ast.parse(block.replace("gs://bucket", gcs.make_bucket())).body
    assert [type(statement) for statement in statements] == [ast.ImportFrom, ast.Expr, ast.Expr]
    for statement in statements:
        source = ast.unparse(statement)
        if isinstance(statement, ast.ImportFrom):
            exec(source, names)
            continue
        with beam.Pipeline(runner=FnApiRunner()) as pipeline:
            if "records" in source:
                names["records"] = pipeline | beam.Create(words)
            names["pipeline"] = pipeline
            result = eval(source, names)
            if "Read" in source:
                assert_that(result, equal_to(words))


def test_privacy(desk: Desk, data: Path) -> None:
    (desk.folder / "data").symlink_to(data)
    (block,) = taken("test_privacy")
    desk.sh(block)
    assert (desk.folder / "key.hex").stat().st_mode & 0o777 == 0o600
    told = json.loads((desk.folder / "rows/manifest.json").read_bytes())
    assert told["options"]["anonymize"] == "prefix_preserving"


@pytest.mark.slow
def test_growing(desk: Desk, data: Path) -> None:
    (desk.folder / "data").symlink_to(data)
    (block,) = taken("test_growing")
    desk.sh(block)
    first, second = json.loads((desk.folder / "rows/manifest.json").read_bytes())["generations"]
    assert (first["counts"]["rows_read"], second["counts"]["rows_read"]) == (50_000, 200_000)
    assert second["counts"]["duplicates_dropped"] >= first["counts"]["measurements"]


@pytest.mark.slow
def test_sample(desk: Desk, data: Path) -> None:
    (desk.folder / "data").symlink_to(data)
    (block,) = taken("test_sample")
    desk.sh(block)
    told = json.loads((desk.folder / "sample/manifest.json").read_bytes())
    assert told["counts"]["rows_left_out"] + told["counts"]["measurements"] == 200_000
    assert told["options"]["until"] == "2026-11-08T00:00:00Z"


def test_convert(desk: Desk) -> None:
    """MaxText has the keys of the page, too."""
    (desk.folder / "c4").mkdir()
    lines = [json.dumps({"text": f"document {number}"}) for number in range(40)]
    (desk.folder / "c4/a.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    command, reading = taken("test_convert")
    desk.sh(command)
    assert desk.python(reading).startswith("40 b")
    (keys,) = [b.text for b in documents.blocks("docs/convert.md") if b.language == "yaml"]
    known = files("maxtext").joinpath("configs/base.yml").read_text()
    assert all(re.search(rf"^{line.split(':')[0]}:", known, re.M) for line in keys.splitlines())


@pytest.mark.slow
def test_overlap(desk: Desk) -> None:
    write_texts(desk.folder)
    for block in taken("test_overlap"):
        shutil.rmtree(desk.folder / "overlap", ignore_errors=True)
        if block.startswith("from"):
            desk.python(block)
            assert (desk.folder / "overlap-15/.SUCCESS").exists()
        else:
            desk.sh(block)
        text = (desk.folder / "overlap/stats/overlap_stats.jsonl").read_text()
        stats = [json.loads(line) for line in text.splitlines()]
        hit = {line["eval_dataset"] for line in stats if line["instance_ids"]}
        assert hit == {"mmlu"} and (desk.folder / "overlap/.SUCCESS").exists()


@pytest.mark.slow
def test_training(desk: Desk, data: Path) -> None:
    """With six steps in place of 200, less to evaluate, and a pip that looks, installs nothing."""
    (desk.folder / "data").symlink_to(data)
    copy_of_the_project(desk.folder)
    desk.stand_in("pip", LOOKING_PIP)
    desk.sh("python -m beam_pipeline.main --input 'data/*.parquet' --output rows")
    less = "--num_contexts=8 --num_rtt=8 --num_train_contexts=8 --num_train_rows=50"
    in_readme, guide = taken("test_training")
    for block in [guide] if in_readme in guide else [in_readme, guide]:
        shutil.rmtree(desk.folder / "runs", ignore_errors=True)
        replace = {"steps=200": "steps=6", "--data rows": f"--data rows {less}"}
        desk.sh(block, replace, JAX_PLATFORMS="cpu")
        assert (desk.folder / "runs/first/evaluation/evaluation.json").exists()


@pytest.mark.slow
def test_learning(desk: Desk) -> None:
    """With a three-hundredth of the measurements and a dozen steps."""
    (block,) = taken("test_learning")
    schedule = r"network_curriculum=128x\d+,512x\d+ steps=\d+"
    block, changes = re.subn(schedule, "network_curriculum=128x6,512x4 steps=12", block)
    assert changes == 1
    fewer = {
        "--num_measurements=10000000": "--num_measurements=30000",
        "--num_probes=8000": "--num_probes=200",
    }
    desk.sh(block, fewer)
    lines = next((desk.folder / "build/learning/runs").glob("*/metrics.jsonl")).read_text()
    assert len(lines.splitlines()) >= 11


# --- engines, TFRecord ----------------------------------------------------------------------------


@pytest.mark.slow
def test_engines(desk: Desk, data: Path, prism: str) -> None:
    """The four blocks of docs/engines.md, the job server at another port: the same bytes."""
    in_memory, on_prism, server, on_flink = taken("test_engines")
    flink_is_built()
    (desk.folder / "data").symlink_to(data)
    for name in ("scripts", ".engines"):
        (desk.folder / name).symlink_to(ROOT / name)
    written = []
    assert ".engines/prism" in on_prism and "8099" in server and "8099" in on_flink
    port, log = free_port(), desk.folder / "flink.log"
    script = ["bash", "-c", server.replace("8099", f"{port} {desk.folder}/flink")]
    with running_server("the job server", script, port, log, dict(os.environ)):
        for block in (in_memory, on_prism, on_flink.replace("8099", str(port))):
            desk.sh(block)
            output = re.findall(r"--output ([\w-]+)", block)[0]
            written.append(shards(desk.folder / output))
    assert written[0] == written[1] == written[2]


@pytest.fixture
def rows_tf(desk: Desk, data: Path) -> Path:
    """The folder rows-tf of docs/format.md."""
    (desk.folder / "data").symlink_to(data)
    desk.sh(taken("test_tensorflow")[0])
    return desk.folder / "rows-tf"


@pytest.mark.slow
def test_readers_of_tfrecord(desk: Desk, rows_tf: Path) -> None:
    (block,) = taken("test_readers_of_tfrecord")
    check = "assert list(records) == list(dataset) and len(list(read_tfrecord(shard))) > 500"
    desk.python(block, check)


@pytest.mark.slow
def test_tensorflow(desk: Desk, rows_tf: Path, tensorflow: Path) -> None:
    _, parsed, plain = taken("test_tensorflow")
    told = json.loads((rows_tf / "manifest.json").read_bytes())["splits"]["train"]
    checks = (
        "values = [row['n_measurements'].numpy() for row in rows]",
        "records = list(" + plain.strip().splitlines()[-1].partition("  #")[0] + ")",
        "print(len(values), sum(map(int, values)), len(records))",
    )
    printed = desk.python(parsed, plain, *checks, python=tensorflow).split()
    expected = [told["num_records"], told["num_measurements"], told["num_records"]]
    assert printed == [str(number) for number in expected]


# --- other tools ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_peers(desk: Desk) -> None:
    (desk.folder / "benchmarks").symlink_to(ROOT / "benchmarks")
    (block,) = taken("test_peers")
    desk.sh(block, PIP_DRY_RUN="1")


@pytest.mark.slow
def test_notebook_commands(desk: Desk) -> None:
    """make says what it would do, pip looks, Jupyter is a stand-in.

    tests/repo/test_examples.py runs the notebook.
    """
    copy_of_the_project(desk.folder)
    (block,) = taken("test_notebook_commands")
    desk.stand_in("jupyter", "exit 0")
    desk.stand_in("make", f'/usr/bin/env -i PATH=/usr/bin:/bin make -n -C {ROOT} "$@"')
    desk.stand_in("pip", LOOKING_PIP)
    desk.sh(block)
    for call in desk.calls("jupyter"):
        assert call[1] in ("lab", "execute") and (ROOT / call[-1]).is_file()


@pytest.mark.slow
def test_go_reader(desk: Desk, data: Path) -> None:
    if shutil.which("go") is None:
        missing("examples/go_reader needs Go, and there is none here")
    (desk.folder / "data").symlink_to(data)
    shutil.copytree(ROOT / "examples/go_reader", desk.folder / "examples/go_reader")
    desk.sh("python -m beam_pipeline.main --input 'data/*.parquet' --output rows")
    (block,) = taken("test_go_reader")
    told = json.loads((desk.folder / "rows/manifest.json").read_bytes())["splits"]["train"]
    path = f"{Path(str(shutil.which('go'))).parent}:{desk.variables['PATH']}"
    printed = desk.sh(block, PATH=path, HOME=str(Path.home())).splitlines()
    rows = [line.split() for line in printed if line.startswith("train_shard_")]
    assert len(rows) == told["num_records"]
    counts = [int(row[4]) for row in rows]
    assert sum(counts) == told["num_measurements"]


def test_atlas_commands(desk: Desk) -> None:
    query, size = taken("test_atlas_commands")
    desk.stand_in("bq", 'cat >"$HOME/asked"')
    desk.stand_in("curl", r"printf 'HTTP/2 200\r\ncontent-type: x\r\nContent-Length: 123\r\n\r\n'")
    (desk.folder / "export.sql").write_text("EXPORT DATA")
    desk.sh(query)
    assert (desk.folder / "asked").read_text() == "EXPORT DATA"
    assert desk.sh(size).split() == ["Content-Length:", "123"]
    ((_, *words),) = desk.calls("curl")
    assert words[0] == "-sI" and re.fullmatch(r"https://\S+/ping-[\dT-]+\.bz2", words[1])
    for call in desk.calls("bq"):
        check_call(call)
