"""What an import costs: the packages load nothing heavy, and reading a dataset needs no Beam."""

import json
import subprocess
import sys

import pytest

HEAVY = ("apache_beam", "numba", "pyarrow", "numpy", "array_record", "jax", "grain")


def loaded_by(module: str) -> set[str]:
    """Returns which heavy packages a fresh interpreter has loaded after the import."""
    script = (
        f"import json, sys, {module}; "
        f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    return set(json.loads(result.stdout))


def test_the_package_is_light() -> None:
    assert loaded_by("beam_pipeline") == set()


@pytest.mark.parametrize(
    "module", ["row_codec", "manifest", "runs", "addresses", "checksum", "generate", "flags"]
)
def test_reading_and_generating_need_no_beam(module: str) -> None:
    assert "apache_beam" not in loaded_by(f"beam_pipeline.{module}")


def test_no_part_of_the_product_needs_the_tests_oracle() -> None:
    script = (
        "import sys, beam_pipeline.main, beam_pipeline.verify; "
        "print('ripe.atlas.sagan' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert result.stdout.strip() == b"False"
