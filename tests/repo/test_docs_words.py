"""The pages name flags, modules, training keys and errors that exist.

A flag in a command is looked up in that program's parser; alone between backticks, in the parsers
of all our programs and of Beam, and in a list of other programs' flags.
"""

import argparse
import ast
import importlib
import importlib.util
import json
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.jobs.beam_options import beam_parser
from beam_pipeline.main import main
from tests.support import documents
from tests.support.docs_commands import check_call, flags_of_google
from tests.support.helpers import measurements_table
from tests.support.repository import ROOT

PAGES = [page for page in documents.pages() if page != "CHANGELOG.md"]
TEXT = {page: "\n".join(documents.code(page)) for page in PAGES}
COMMAND = re.compile(r"python3? -m ([\w.]+)((?:[^\n\\|;&]|\\\n)*)")
FLAG = re.compile(r"(?<![\w-])--(?!x\b)[A-Za-z][\w-]*")  # --x stands for any
TAKE_BEAMS = {"beam_pipeline.main", "beam_pipeline.overlap", "beam_pipeline.convert"}
# Flags of other programs that pages name: gcloud, gcsfuse, curl, pip, bq and our shell scripts.
OF_OTHERS = {
    *flags_of_google(),
    *("--metadata-cache-ttl-secs", "--stat-cache-max-size-mb", "--type-cache-max-size-mb"),
    *("--kernel-list-cache-ttl-secs", "--implicit-dirs", "--cache-dir"),  # gcsfuse
    *("--file-cache-max-size-mb", "--file-cache-cache-file-for-range-read"),  # gcsfuse
    *("--fail", "--retry"),  # curl
    "--cpu-budget",  # pytest, see tests/conftest.py
    "--number_of_execution_retries",  # Flink's job server
    *("--inplace", "--execute", "--to"),  # jupyter nbconvert
    "--dry-run",  # templates/*.sh
}  # fmt: skip


class ParserFound(BaseException):
    """Ends a program where it would have parsed its flags."""


@cache
def flags_of(module: str) -> frozenset[str]:
    """Returns the flags of a program that is started by `python -m`."""
    if module == "benchmarks.measure":  # takes a command
        return frozenset()
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
    """Yields the module and the rest of the line of each `python -m` of a page."""
    for match in COMMAND.finditer(TEXT[page]):
        yield match[1], match[2]


def our_modules() -> set[str]:
    named = {module for page in PAGES for module, _ in commands(page)}
    return {module for module in named if module.partition(".")[0] in OURS}


OURS = ("beam_pipeline", "training", "benchmarks")


def test_modules_that_are_named_are_there() -> None:
    assert len(our_modules()) > 12
    for module in our_modules():
        assert importlib.util.find_spec(module), module


@pytest.mark.parametrize("page", PAGES)
def test_the_flags_of_a_command_are_those_of_its_program(page: str) -> None:
    for module, rest in commands(page):
        if module.partition(".")[0] not in OURS or module == "training.train":
            continue
        named = set(FLAG.findall(rest.partition(" -- ")[0].partition("#")[0]))
        known = flags_of(module) | (flags_of_beam() if module in TAKE_BEAMS else set())
        assert named <= known, f"{module}: {named - known}"


@pytest.mark.parametrize("page", PAGES)
def test_every_flag_that_is_named_is_one(page: str) -> None:
    known = flags_of_beam() | OF_OTHERS
    for module in our_modules() - {"training.train"}:
        known |= flags_of(module)
    named = set(FLAG.findall(TEXT[page]))
    assert named <= known, sorted(named - known)


def test_calls_of_gcloud_and_bq() -> None:
    checked = 0
    for page in PAGES:
        for line in TEXT[page].replace("\\\n", " ").splitlines():
            for call in re.findall(r"\b(?:gcloud|bq) [a-z][^<>|&;#]*", line):
                check_call(shlex.split(call))
                checked += 1
    assert checked > 10


@pytest.mark.slow
def test_keys_of_training() -> None:
    from training.maxtext.iterators import NetworkConfig

    known = set(NetworkConfig.model_fields)
    keys = set()
    for page in PAGES:
        for module, rest in commands(page):
            if module == "training.train":
                words = shlex.split(rest.replace("\\\n", " "), comments=True)
                keys |= {word.partition("=")[0] for word in words if "=" in word}
        keys |= set(re.findall(r"\bnetwork_\w+(?==|\b)", TEXT[page]))
    assert {"network_train_files", "steps", "run_name"} <= keys
    assert keys <= known, keys - known


# --- errors ---------------------------------------------------------------------------------------

GAP = "…"
# What pages quote and others say: Google's services, JAX, the system, MaxText, the shell.
SAID_BY_OTHERS = (
    *("No space left on device", "The template parameters are invalid", "operation_result"),
    *("Failed to read the job file", "ImagePullBackOff", "No module named"),
    *("storage.buckets.get", "The TPU is already in use", "coordinator_address"),
)  # fmt: skip


@cache
def texts_of_the_code() -> list[str]:
    """Returns every text of the programs, what is put into it as a gap; scripts line by line."""
    texts = []
    for path in [*ROOT.glob("beam_pipeline/**/*.py"), *ROOT.glob("training/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [p.value if isinstance(p, ast.Constant) else GAP for p in node.values]
                texts.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    for path in ROOT.glob("templates/**/*.sh"):
        texts += [re.sub(r"\$\{?\w+\}?", GAP, line) for line in path.read_text().splitlines()]
    return texts


def is_said(message: str) -> bool:
    """Tells whether a text of the code has the parts of a message, in order, less its values."""
    # --html is a value, too: `require_packages` gets the name of the flag.
    values = r"'[^']*'(?!s)|\b\d+\b|\b[A-Z]{4,}\b|_SUCCESS|--x\b|^--html\b"
    message = re.sub(values, GAP, message)
    parts = [re.escape(part.strip()) for part in message.split(GAP) if part.strip()]
    pattern = re.compile(".*".join(parts), re.DOTALL)
    return any(pattern.search(text) for text in texts_of_the_code())


def quoted(page: str) -> list[str]:
    """Returns what is between backticks in the first cells of a page's tables of symptoms."""
    found, header = [], ""
    for line in (ROOT / page).read_text().splitlines():
        first = line.split("|")[1].strip() if line.startswith("|") else ""
        header = header or first if first else ""
        if header in ("symptom", "seen"):
            found += [code for code in re.findall(r"`([^`]+)`", first) if " " in code]
    return found


SYMPTOMS = ("troubleshooting", "training", "training_data", "flex_templates")


@pytest.mark.parametrize("page", [f"docs/{name}.md" for name in SYMPTOMS])
def test_errors_that_are_quoted_are_in_the_code(page: str) -> None:
    messages = quoted(page)
    assert len(messages) >= 2
    for message in messages:
        if not any(text in message for text in SAID_BY_OTHERS):
            assert is_said(message), f"{page} quotes `{message}`, which no code says"


def test_what_is_not_said_is_found() -> None:
    assert not is_said("there is no such error in … at all")


# --- docs/format.md -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with dead letters."""
    folder = tmp_path_factory.mktemp("format")
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
def test_columns_are_those_of_the_files(dataset: Path, name: str, files: str) -> None:
    listed = re.findall(r"^\| `(\w+)` \| (\S+) \|", part_of_the_format(f"columns:{name}"), re.M)
    schema = pq.read_schema(next(dataset.glob(files)))
    assert listed == [(field.name, str(field.type)) for field in schema]


def test_the_fields_of_the_manifest_are_listed(dataset: Path) -> None:
    listed = set(re.findall(r"`([\w.]+)(?:\.…|\[\])?`", part_of_the_format("fields:manifest.json")))
    told = json.loads((dataset / "manifest.json").read_bytes())
    split = told["splits"]["train"]
    named = {
        *(name for name in told if name not in ("counts", "splits")),
        *(f"counts.{name}" for name in told["counts"]),
        *(f"splits.{name}" for name in told["splits"]),
        *split,
        *split["shards"][0],
    }
    assert listed - {"probeline", "measurements", "rows.parquet"} == named
    script = runpy.run_path(str(ROOT / "scripts/manifest_schema.py"))
    assert script["PATH"].read_bytes() == script["schema"](), (
        "run python scripts/manifest_schema.py"
    )
    files = {path.name for path in dataset.iterdir()}
    layout = documents.blocks("docs/format.md")[0].text
    assert {name for name in files if f"  {name}" not in layout} == set()
