"""What an import costs: the packages load nothing heavy, and reading a dataset needs no Beam."""

import json
import subprocess
import sys

import pytest

from tests.support.repository import ROOT
from tests.support.warm_python import warm_python
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


@pytest.mark.parametrize(
    "package", ["beam_pipeline", "beam_pipeline.inspect", "beam_pipeline.overlap", "training"]
)
def test_the_packages_are_light(package: str) -> None:
    assert loaded_by(package) == set()


def test_reading_and_generating_need_no_beam() -> None:
    modules = (
        *("dataset.row_codec", "dataset.manifest", "dataset.sorted_run", "dataset.addresses"),
        *("dataset.rtt", "dataset.data_card", "storage.files", "storage.gcs"),
        *("simulation.files", "cli.flags", "report.page"),
        *(
            "inspect.terminal",
            "inspect.page",
            "inspect.row",
            "verify.terminal",
            "export.measurements",
        ),
    )
    imported = ", ".join(f"beam_pipeline.{module}" for module in modules)
    assert "apache_beam" not in loaded_by(imported)


def test_verify_is_imported_in_little_more_than_numba_takes() -> None:
    """0.6 CPU-seconds, 2.5 with Beam; the ratio to numba holds on a busy machine, too."""

    def cpu_seconds(module: str) -> float:
        script = f"import time, {module}; print(time.process_time())"
        result = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
        return float(result.stdout)

    def ratio() -> float:
        return cpu_seconds("beam_pipeline.verify.terminal") / cpu_seconds("numba")

    assert any(ratio() < 2.5 for _ in range(5))


@pytest.mark.slow
def test_training_needs_no_beam() -> None:
    """MaxText takes 15 CPU-seconds: for modules that need it, what they import of ours is."""
    own = (name for name in TRAINING for name in (name, *imports().get(name, ())))
    loaded = loaded_by(", ".join(sorted({name for name in own if "maxtext" not in name})))
    assert "grain" in loaded
    assert "apache_beam" not in loaded


def test_no_part_of_the_product_needs_the_tests_oracle() -> None:
    script = (
        "import sys, beam_pipeline.probe_rows.launch, beam_pipeline.verify.terminal; "
        "print('ripe.atlas.sagan' in sys.modules)"
    )
    result = subprocess.run([*warm_python(), "-c", script], capture_output=True, check=True)
    assert result.stdout.strip() == b"False"
