"""What an import costs: the packages load nothing heavy, and reading a dataset needs no Beam."""

import json
import subprocess
import sys

import pytest

from tests.support.repository import ROOT
from tests.test_layers import imports

TRAINING = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "training").rglob("*.py")
    if path.name != "__init__.py" and path.parent.name != "torch"  # tests/training/with_torch
)

HEAVY = ("apache_beam", "numba", "pyarrow", "numpy", "array_record", "jax", "grain")


def loaded_by(module: str) -> set[str]:
    """Returns which heavy packages a fresh interpreter has loaded after the import."""
    script = (
        f"import json, sys, {module}; "
        f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return set(json.loads(result.stdout))


def test_the_packages_are_light() -> None:
    packages = "beam_pipeline", "beam_pipeline.inspect", "beam_pipeline.overlap", "training"
    assert loaded_by(", ".join(packages)) == set()


def test_reading_and_generating_need_no_beam() -> None:
    modules = (
        *("dataset.row_codec", "dataset.manifest", "dataset.sorted_run", "dataset.addresses"),
        *("dataset.rtt", "dataset.data_card", "storage.files", "storage.gcs"),
        *("simulation.files", "cli.flags", "report.page", "inspect.terminal", "inspect.page"),
        *("inspect.row", "verify.terminal", "export.measurements"),
        *("overlap.report.page", "overlap.report.output"),
    )
    imported = ", ".join(f"beam_pipeline.{module}" for module in modules)
    assert "apache_beam" not in loaded_by(imported)


@pytest.mark.slow
def test_training_needs_no_beam() -> None:
    """MaxText takes 15 CPU-seconds: for modules that need it, what they import of ours is."""
    own = (name for name in TRAINING for name in (name, *imports().get(name, ())))
    loaded = loaded_by(", ".join(sorted({name for name in own if "maxtext" not in name})))
    assert "grain" in loaded
    assert "apache_beam" not in loaded
