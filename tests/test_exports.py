"""What `beam_pipeline` and `training` export: loaded lazily, known to type checkers, documented."""

import ast
import importlib
import inspect
import pickle
import subprocess
import sys
from types import ModuleType

import pytest

import beam_pipeline
import training
from beam_pipeline.dataset.rows import open_dataset
from beam_pipeline.errors import UsageError
from beam_pipeline.overlap import DeconConfig
from tests.support.repository import ROOT

PACKAGES = (beam_pipeline, training)
_HEAVY = {"load_predictor"}  # loads MaxText
every_export = pytest.mark.parametrize(
    ("package", "name"),
    [
        pytest.param(package, name, marks=[pytest.mark.slow] if name in _HEAVY else [])
        for package in PACKAGES
        for name in package.__all__
    ],
)


def stub(package: ModuleType) -> dict[str, str]:
    """Returns the module of each name that the stub of a package imports."""
    tree = ast.parse((ROOT / package.__name__ / "__init__.pyi").read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    pairs = [(alias, node.module or "") for node in imports for alias in node.names]
    assert all(alias.name == alias.asname for alias, _ in pairs)  # PEP 484: a re-export
    return {alias.name: module for alias, module in pairs}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_the_names_are_those_of_the_stub(package: ModuleType) -> None:
    assert sorted(stub(package)) == package.__all__
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'no'"):
        package.no  # noqa: B018
    with pytest.raises(ImportError):
        exec(f"from {package.__name__} import no")


@every_export
def test_an_export_is_that_of_its_module(package: ModuleType, name: str) -> None:
    module = importlib.import_module(stub(package)[name])
    assert getattr(package, name) is getattr(module, name)
    documentation = inspect.getdoc(getattr(package, name))
    assert documentation and documentation.splitlines()[0].endswith((".", "`.", ";", ":"))


def test_a_name_loads_its_module_alone() -> None:
    script = (
        "import sys, beam_pipeline, training; from training import DataConfig; "
        "from beam_pipeline import open_dataset; "
        "print([name for name in ('apache_beam', 'grain', 'jax') if name in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert printed.stdout == b"[]\n"


def test_what_is_exported_can_be_pickled() -> None:
    config = DeconConfig(input_path="a", decontaminate_source="b", output_path="c")
    assert pickle.loads(pickle.dumps(config)) == config
    assert pickle.loads(pickle.dumps(beam_pipeline.open_dataset)) is open_dataset
    assert pickle.loads(pickle.dumps(UsageError("x"))).args == ("x",)
