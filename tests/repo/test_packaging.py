"""setup.py and its locks fit together; a wheel works in an empty environment; make_venv.sh."""

import os
import re
import runpy
import shutil
import subprocess
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import setuptools
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from beam_pipeline.errors import EXTRA_OF
from tests.support.clean_environment import clean, copy_of_the_project, new_environment, pip
from tests.support.repository import ROOT
from tests.support.stand_ins import StandIns, check_copied, check_shell, run_script

NOT_LOCKED = {"gpu", "tpu", "torch"}
# What MaxText requires on a TPU only, and its dependencies.
ONLY_ON_TPU = {"google-auth-httplib2", "google-cloud-aiplatform", "mpmath", "sympy"}


@pytest.fixture
def arguments(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments that setup.py gives to setuptools."""
    found: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", found.update)
    runpy.run_path(str(ROOT / "setup.py"))
    return found


def lock(path: str) -> dict[str, set[str]]:
    """Returns the versions of each package in a lock: several where markers differ."""
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
        ("requirements.txt", None),
        ("templates/tpu/constraints.txt", {"tpu"}),
        ("templates/worker_requirements.txt", set()),
    ],
)
def test_outdated_lock(path: str, extras: set[str] | None, arguments: dict[str, Any]) -> None:
    """`make lock` writes them."""
    versions, by_extra = lock(path), arguments["extras_require"]
    wanted_extras = by_extra.keys() - NOT_LOCKED if extras is None else extras
    wanted = [*arguments["install_requires"], *(r for e in wanted_extras for r in by_extra[e])]
    for requirement in map(Requirement, wanted):
        for version in versions[canonicalize_name(requirement.name)]:
            assert requirement.specifier.contains(version), requirement
    tested = lock("requirements.txt")
    different = {name for name in versions.keys() & tested.keys() if tested[name] != versions[name]}
    assert different <= ONLY_ON_TPU


def test_extras(arguments: dict[str, Any]) -> None:
    extras = {name: set(wanted) for name, wanted in arguments["extras_require"].items()}
    assert extras["all"] == extras["gcp"] | extras["maxtext"] | extras["report"]
    assert extras["training"] < extras["maxtext"] < extras["gpu"]
    assert extras["training"] < extras["tpu"] and extras["training"] < extras["torch"]
    base = {canonicalize_name(Requirement(line).name) for line in arguments["install_requires"]}
    assert not base & {"apache-beam", "grain", "jax", "matplotlib", "jinja2"}
    for package, extra in EXTRA_OF.items():
        names = {Requirement(line).name.replace("-", "_") for line in extras[extra]}
        distribution = {"absl": "absl_py", "google": "apache_beam", "yaml": "pyyaml"}.get(
            package, package
        )
        assert distribution in names, f"{package} comes with {extra}"


@pytest.mark.parametrize("path", [*ROOT.glob("templates/*/Dockerfile"), ROOT / "Dockerfile"])
def test_files_of_an_image(path: Path) -> None:
    copied = re.findall(r"^COPY (.+)", path.read_text(), re.MULTILINE)
    check_copied(copied)
    kept = re.findall("^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    for source in (source for line in copied for source in line.split()[:-1]):
        assert any(fnmatch(f"{source}/", f"{pattern}/*") for pattern in kept), source


# --- the wheel ------------------------------------------------------------------------------------


def packaged(folder: Path) -> set[str]:
    """Returns the files of our packages in a folder, without caches."""
    paths = [path for name in ("beam_pipeline", "training") for path in folder.glob(f"{name}/**/*")]
    files = (path for path in paths if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(folder)) for path in files}


@pytest.mark.slow
def test_the_wheel_in_an_empty_environment(tmp_path: Path) -> None:
    python, folder = new_environment(tmp_path / "environment"), tmp_path / "empty"
    folder.mkdir()
    project = copy_of_the_project(tmp_path / "project")
    pip(python, "wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(project))
    (wheel,) = tmp_path.glob("probeline-*.whl")

    def install(extras: str) -> None:
        pip(python, "install", "--constraint", str(ROOT / "requirements.txt"), f"{wheel}{extras}")
        pip(python, "check")

    def run(command: str, code: int = 0) -> str:
        program = [python.parent / "probeline", *command.split()]
        done = subprocess.run(
            program, cwd=folder, env=clean(os.environ), capture_output=True, text=True
        )
        assert done.returncode == code, done.stderr
        return done.stderr if code else done.stdout

    install("")
    (home,) = python.parent.parent.glob("lib/python3*/site-packages")
    assert packaged(home) == packaged(ROOT)
    (metadata,) = home.glob("probeline-*.dist-info/METADATA")
    described = metadata.read_text()
    assert (
        "\nAuthor: Probeline developers\n" in described and "\nProject-URL: Issues, " in described
    )
    links = re.findall(r"\]\(([^)]+)\)", described)
    assert len(links) > 20 and all(link.startswith("https://") for link in links)
    run("generate --output data --num_measurements 20000 --num_probes 50")
    for command, extra in (
        ("rows --input data/*.parquet --output rows", "beam"),
        ("overlap --input_path x --decontaminate_source y --output_path z", "beam"),
        ("padding rows", "training"),
        ("train tiny", "maxtext"),
        ("inspect rows --html page.html", "report"),
    ):
        error = run(command, code=2)
        assert error.count("\n") == 1 and f"pip install 'probeline[{extra}]'" in error

    install("[beam,report,training]")
    run("rows --input data/*.parquet --output rows")
    assert "20,000 measurements" in run("verify rows")
    run("inspect rows --html page.html")
    assert "tokens:" in run("inspect rows --context=1,0,0")
    (folder / "corpus").mkdir()
    (folder / "corpus/a.jsonl").write_text('{"text": "one two three four five"}\n' * 3)
    flags = "--input_path corpus --decontaminate_source it=corpus --output_path overlap"
    run(f"overlap {flags} --ngram_length 3")
    run("report overlap")
    assert "<html" in (folder / "overlap.html").read_text()


# --- scripts/make_venv.sh -------------------------------------------------------------------------

SCRIPT = ROOT / "scripts" / "make_venv.sh"
WHAT = ["--constraint", "requirements.txt", "--editable", ".[beam,report]"]
FETCHES_UV = 'if [[ $* == *" uv" ]]; then mv "${0%/*}/fetched" "${0%/*}/uv"; fi'
PIP = ["python", "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]


@pytest.mark.parametrize(
    ("programs", "expected"),
    [
        ({"python": "", "../../path/uv": ""}, ["uv"]),
        ({"python": FETCHES_UV, "fetched": ""}, ["fetch", "uv"]),
        ({"python": '[[ $* != *" uv" ]]'}, ["fetch", "pip"]),
        ({"python": FETCHES_UV, "fetched": "exit 2"}, ["fetch", "uv", "pip"]),
    ],
    ids=["uv", "fetched uv", "pip without uv", "pip after uv fails"],
)
def test_installer(tmp_path: Path, programs: dict[str, str], expected: list[str]) -> None:
    venv, path = tmp_path / "venv", tmp_path / "path"
    path.mkdir()
    for name in ("bash", "mv"):
        (path / name).symlink_to(str(shutil.which(name)))
    stand_ins = StandIns(venv / "bin")
    for name, body in programs.items():
        stand_ins.add(name, body)
    run_script(
        SCRIPT,
        *("no", str(venv), "beam,report"),
        environment={**stand_ins.variables, "PATH": str(path)},
    )
    calls = {
        "fetch": [*PIP, "uv"],
        "uv": ["uv", "pip", "install", "--quiet", "--python", f"{venv}/bin/python", *WHAT],
        "pip": [*PIP, "--no-compile", *WHAT],
    }
    assert stand_ins.calls() == [calls[name] for name in expected]


def test_missing_python(tmp_path: Path) -> None:
    check_shell(SCRIPT)
    (tmp_path / "bash").symlink_to(str(shutil.which("bash")))
    arguments = ["python9", str(tmp_path / "venv"), "beam"]
    error = run_script(SCRIPT, *arguments, environment={"PATH": str(tmp_path)}, code=1)
    assert error.count("\n") == 1 and "needs Python 3.12 or 3.13" in error
