"""setup.py, its lock, and what an image is made of: names, versions and files that fit together."""

import re
import runpy
from fnmatch import fnmatch
from typing import Any

import pytest
import setuptools
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from beam_pipeline.cli.command import EXTRA_OF
from tests.support.repository import ROOT
from tests.support.stand_ins import check_copied

EXTRAS = {"beam", "gcp", "training", "torch", "maxtext", "gpu", "tpu", "report", "all"}
FOR_A_CLONE = {"docs", "examples", "dev"}
# What MaxText asks for on a TPU alone, and what follows from it.
ONLY_ON_TPU = {"google-auth-httplib2", "google-cloud-aiplatform", "mpmath", "sympy"}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What setup.py tells setuptools."""
    told: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", told.update)
    runpy.run_path(str(ROOT / "setup.py"))
    return told


def lock(path: str) -> dict[str, set[str]]:
    """Returns the versions of each package in a lock, which has several where markers differ."""
    versions: dict[str, set[str]] = {}
    for line in (ROOT / path).read_text().splitlines():
        if not line.startswith("#"):
            pinned = Requirement(line)
            (exactly,) = pinned.specifier
            assert exactly.operator == "==" and not pinned.url and not pinned.extras, line
            versions.setdefault(canonicalize_name(pinned.name), set()).add(exactly.version)
    return versions


@pytest.mark.parametrize(
    ("path", "extras"),
    [
        ("requirements.txt", EXTRAS - {"gpu", "tpu", "torch"} | FOR_A_CLONE),
        ("templates/tpu/constraints.txt", {"tpu"}),
        ("templates/worker_requirements.txt", set()),
    ],
)
def test_the_lock_has_what_setup_py_allows(
    path: str, extras: set[str], told: dict[str, Any]
) -> None:
    assert (ROOT / path).read_text().partition("\nabsl")[0].endswith("make lock")
    versions = lock(path)
    wanted = [*told["install_requires"], *(r for e in extras for r in told["extras_require"][e])]
    for requirement in map(Requirement, wanted):
        for version in versions[canonicalize_name(requirement.name)]:
            assert requirement.specifier.contains(version), requirement


def test_hosts_of_a_slice_have_the_tested_versions() -> None:
    tested, on_hosts = lock("requirements.txt"), lock("templates/tpu/constraints.txt")
    both = tested.keys() & on_hosts.keys()
    assert {"grain", "jax", "maxtext", "numba", "numpy", "orbax-checkpoint", "pyarrow"} <= both
    assert {name for name in both if tested[name] != on_hosts[name]} <= ONLY_ON_TPU


def test_workers_have_the_tested_versions() -> None:
    tested, on_workers = lock("requirements.txt"), lock("templates/worker_requirements.txt")
    assert {"array-record", "llvmlite", "numba", "numpy", "pyarrow"} <= on_workers.keys()
    assert {name: tested[name] for name in on_workers} == on_workers


def test_an_extra_is_for_a_use(told: dict[str, Any]) -> None:
    extras = {name: set(wanted) for name, wanted in told["extras_require"].items()}
    assert extras.keys() == EXTRAS | FOR_A_CLONE
    assert extras["all"] == extras["gcp"] | extras["maxtext"] | extras["report"]
    assert extras["training"] < extras["maxtext"] < extras["gpu"]
    assert extras["training"] < extras["tpu"] and extras["training"] < extras["torch"]
    base = {canonicalize_name(Requirement(line).name) for line in told["install_requires"]}
    assert not base & {"apache-beam", "grain", "jax", "matplotlib", "jinja2"}
    for package, extra in EXTRA_OF.items():
        names = {Requirement(line).name.replace("-", "_") for line in extras[extra]}
        distribution = {"absl": "absl_py", "yaml": "pyyaml"}.get(package, package)
        assert distribution in names, f"{package} comes with {extra}"


@pytest.mark.parametrize("path", ["Dockerfile", "templates/tpu/Dockerfile"])
def test_an_image_is_made_of_files_that_are_there_and_reach_the_builder(path: str) -> None:
    text = (ROOT / path).read_text()
    copied = re.findall(r"^COPY (.+)", text, re.MULTILINE)
    check_copied(copied)
    kept = re.findall("^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    for source in (source for line in copied for source in line.split()[:-1]):
        assert any(fnmatch(f"{source}/", f"{pattern}/*") for pattern in kept), source
    assert "FROM python:3.12-" in text


def test_make_clean_and_git_know_the_same_outputs() -> None:
    (clean,) = re.findall(r"^clean:\n\trm -rf (.+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    removed = {"$(VENV)": ".venv", "$(DEMO)": "demo"}
    ignored = {line.rstrip("/") for line in (ROOT / ".gitignore").read_text().splitlines()}
    assert {removed.get(name, name) for name in clean.split()} <= ignored
