"""docs/reference.md: every exported name, documented, with an example that runs."""

import inspect
import json
import re
import shutil
import textwrap
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

import beam_pipeline
import training
from tests.support.damaged_dataset import compact_dataset
from tests.support.evaluation_helpers import Uniform
from tests.support.repository import ROOT
from training import build_dataset

__all__ = ["compact_dataset"]
NAMES = [
    f"{package.__name__}.{name}"
    for package in (beam_pipeline, training)
    for name in package.__all__
]


def exported(name: str) -> Any:
    package, _, name = name.partition(".")
    return getattr({"beam_pipeline": beam_pipeline, "training": training}[package], name)


def examples(documented: Any) -> list[str]:
    """Returns the examples in the docstrings of a function, or of a class and its methods."""
    methods = [value for key, value in vars(documented).items() if not key.startswith("_")]
    texts = [inspect.getdoc(each) or "" for each in (documented, *methods) if callable(each)]
    found = re.compile(r"^Example:\n\n((?: {4}.*\n|\n)+)", re.MULTILINE)
    return [textwrap.dedent(match[1]) for text in texts for match in found.finditer(f"{text}\n")]


def test_the_page_has_every_exported_name_once() -> None:
    page = (ROOT / "docs/reference.md").read_text()
    assert sorted(re.findall(r"^::: (\S+)$", page, re.MULTILINE)) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_arguments_are_documented(name: str) -> None:
    """Each by its name under Args or Attributes; a dataclass of flags has their help."""
    documented = exported(name)
    text = inspect.getdoc(documented) or ""
    if isinstance(documented, type) and issubclass(documented, Exception):
        return
    fields = getattr(documented, "__dataclass_fields__", {})
    for parameter in inspect.signature(documented).parameters:
        help_text = fields[parameter].metadata.get("help") if parameter in fields else None
        is_documented = re.search(rf"^  {parameter}: \S", text, re.MULTILINE)
        assert is_documented or help_text or name in INTERNAL or parameter == "ngram", parameter


# Users do not call these.
INTERNAL = ("training.BatchDataset",)


@pytest.fixture
def desk(tmp_path: Path, compact_dataset: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the examples read."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(compact_dataset, "rows")
    for name in ("corpus/a.jsonl", "eval/mmlu/test.jsonl"):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"id": "1", "text": "one two three four"}) + "\n")
    return tmp_path


@pytest.mark.parametrize("name", NAMES)
def test_the_examples_run(name: str, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = examples(exported(name))
    assert found, f"{name} has no example"
    monkeypatch.setitem(vars(training), "load_predictor", lambda _: Uniform())
    for example in found:
        names: dict[str, Any] = {each.partition(".")[2]: exported(each) for each in NAMES}
        names |= {"beam": beam, "predictor": Uniform(), "load_predictor": lambda _: Uniform()}
        names["build_torch_dataset"] = build_dataset  # tests/training/with_torch has PyTorch
        if "pipeline |" not in example:
            exec(example, names)
            continue
        with beam.Pipeline(runner=FnApiRunner()) as pipeline:
            _ = pipeline | beam.Create([b"alpha"]) | names["WriteToArrayRecord"]("out/words")
        with beam.Pipeline(runner=FnApiRunner()) as pipeline:
            exec(example, {**names, "pipeline": pipeline})
        assert list(desk.glob("out/words-*-of-*.arrayrecord"))
