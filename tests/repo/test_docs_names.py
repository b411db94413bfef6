"""Modules, flags, training keys, make targets and columns that pages name exist.

A flag in a command is looked up in that program's parser, a flag in running text in the parsers of
all our programs and of Beam.
"""

import argparse
import dataclasses
import importlib
import json
import re
import shlex
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.cli.probeline import PROGRAMS
from beam_pipeline.dataset.manifest import NamesFile
from beam_pipeline.jobs.beam_options import beam_parser
from beam_pipeline.main import main
from tests.support import documents
from tests.support.helpers import measurements_table
from tests.support.repository import ROOT

PAGES = [page for page in documents.pages() if page != "CHANGELOG.md"]
CODE = {page: documents.code(page) for page in PAGES}
COMMAND = re.compile(
    r"(?:python3? -m ((?:beam_pipeline|training|benchmarks)[\w.]*)|(?<![\w/.-])probeline ([a-z]+))"
    r"([^\n|;&]*)"
)
FLAG = re.compile(r"(?<![\w-])--(?!x\b)[A-Za-z][\w-]*")  # --x stands for any
TAKE_BEAMS = {"beam_pipeline.main", "beam_pipeline.overlap", "beam_pipeline.convert"}
# Flags in running text that belong to other programs.
OTHERS = re.compile(
    r"--([\w-]+-cache-[\w-]+|cache-dir|implicit-dirs|file-cache-[\w-]+)"  # gcsfuse
    r"|--(max-workers|num-workers|worker-machine-type|disable-public-ips|subnetwork)"  # gcloud
    r"|--(additional-user-labels|soft-delete-duration|enable-hierarchical-namespace)"  # gcloud
    r"|--(impersonate-service-account|tunnel-through-iap|parameters)"  # gcloud
    r"|--(dry-run|cpu-budget|number_of_execution_retries|maximum_bytes_billed)"  # ours, Flink, bq
)


class ParserFound(BaseException):
    """Ends a program where it would have parsed its flags."""


@cache
def flags_of(module: str) -> frozenset[str]:
    """Returns the flags of a program that is started by `python -m`."""
    found: list[argparse.ArgumentParser] = []

    def stop(parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        found.append(parser)
        raise ParserFound

    is_package = (ROOT / module.replace(".", "/")).is_dir()
    program = importlib.import_module(f"{module}.__main__" if is_package else module)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_known_args", stop)
        patch.setattr(sys, "argv", [module])
        with pytest.raises(ParserFound):
            program.main()
    return frozenset(found[0]._option_string_actions)


@cache
def flags_of_beam() -> frozenset[str]:
    return frozenset(beam_parser()._option_string_actions)


def commands(page: str) -> Iterator[tuple[str, str]]:
    """Yields the module and the rest of the line of each command of ours on a page."""
    for code in CODE[page]:
        for match in COMMAND.finditer(code.replace("\\\n", " ")):
            module = match[1] or PROGRAMS[match[2]].module.removesuffix(".__main__")
            yield module, match[3].partition("#")[0].partition(" -- ")[0]


def our_flags() -> set[str]:
    modules = {module for page in PAGES for module, _ in commands(page)}
    modules -= {"training.train", "benchmarks.measure"}  # they take keys and commands
    return {flag for module in modules for flag in flags_of(module)}


@pytest.mark.parametrize("page", PAGES)
def test_unknown_flag(page: str) -> None:
    for module, rest in commands(page):
        if module not in ("training.train", "benchmarks.measure"):
            known = flags_of(module) | (flags_of_beam() if module in TAKE_BEAMS else set())
            assert set(FLAG.findall(rest)) <= known, module
    inline = [code for code in CODE[page] if re.match(r"--\w", code)]
    named = {flag for code in inline for flag in FLAG.findall(code) if not OTHERS.fullmatch(flag)}
    assert named <= our_flags() | flags_of_beam()


@pytest.mark.slow  # loads MaxText
def test_unknown_training_key() -> None:
    from training.maxtext.iterators import NetworkConfig

    keys = set()
    for page in PAGES:
        for module, rest in commands(page):
            if module == "training.train":
                keys |= {word.partition("=")[0] for word in shlex.split(rest) if "=" in word}
        keys |= set(re.findall(r"\bnetwork_\w+(?==|\b)", "\n".join(CODE[page])))
    assert "network_train_files" in keys and keys <= set(NetworkConfig.model_fields)


def test_unknown_make_target() -> None:
    text = "\n".join(code for page in PAGES for code in CODE[page])
    targets = set(re.findall(r"^(?:[A-Z]+=\S+ |[A-Z]+=\"[^\"]*\" )*make ([a-z-]+)\b", text, re.M))
    phony = re.findall(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.M)[0].split()
    assert {"test", "setup"} <= targets <= set(phony)


# --- docs/format.md -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dataset(folder: Path) -> Path:
    """A dataset with dead letters."""
    table = measurements_table(300, seed=1)
    bad = table.slice(0, 2).set_column(1, "src_addr", pa.array(["nowhere"] * 2))
    pq.write_table(pa.concat_tables([table, bad.cast(table.schema)]), folder / "in.parquet")
    assert main([f"--input={folder}/in.parquet", f"--output={folder}/rows"]) == 0
    return folder / "rows"


def part_of_the_format(name: str) -> str:
    text = (ROOT / "docs/format.md").read_text()
    return text.partition(f"<!-- {name} -->")[2].partition(f"<!-- /{name} -->")[0]


@pytest.mark.parametrize(
    ("name", "files"),
    [("rows.parquet", "train/rows.parquet"), ("dead_letter", "dead_letter/*.parquet")],
)
def test_columns_of_the_format(dataset: Path, name: str, files: str) -> None:
    listed = re.findall(r"^\| `(\w+)` \| (\S+) \|", part_of_the_format(f"columns:{name}"), re.M)
    schema = pq.read_schema(next(dataset.glob(files)))
    assert listed == [(field.name, str(field.type)) for field in schema]


def test_fields_of_the_manifest(dataset: Path) -> None:
    listed = set(re.findall(r"`([\w.]+)(?:\.…|\[\])?`", part_of_the_format("fields:manifest.json")))
    manifest = json.loads((dataset / "manifest.json").read_bytes())
    split = manifest["splits"]["train"]
    named = {
        *(name for name in manifest if name not in ("counts", "splits")),
        *(f"counts.{name}" for name in manifest["counts"]),
        *(f"splits.{name}" for name in manifest["splits"]),
        *split,
        *split["shards"][0],
    }
    named |= {"names", *(field.name for field in dataclasses.fields(NamesFile))}
    assert listed - {"probeline", "measurements", "rows.parquet", "names.parquet"} == named
    layout = documents.blocks("docs/format.md")[0].text
    assert [p.name for p in dataset.iterdir() if f"  {p.name}" not in layout] == []
