"""templates/tpu with fakes of gcloud, xpk, docker and of a host's programs: what they are told.

The scripts run in a copy of the tree whose path has a space. `calls` holds every command's words.
Where `HOST_HOME` is set, the fake gcloud copies and runs there what it is given for the hosts.
"""

import json
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import setuptools
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
TEMPLATES = ROOT / "templates/tpu"
SCRIPTS = sorted(path.name for path in TEMPLATES.glob("*.sh"))
OUR_KEYS = re.compile(r"network_\w+|grain_debug_mode|grain_visualization_dir")

SETTINGS = """
PROJECT=my-project
ZONE=us-east5-b
SERVICE_ACCOUNT=train@my-project.iam.gserviceaccount.com
DATASET=gs://data/probes/rows
OUTPUT=gs://results/runs
RUN_NAME='first run'
NAME=pod-1
CLUSTER=tpus
IMAGE=registry.example/my-project/probeline:1
ENVIRONMENT=(DECOUPLE_GCLOUD=FALSE "LIBTPU_INIT_ARGS=--xla_a=true --xla_b='x'")
MAX_RESTARTS=3 RESTART_DELAY_S=0 POLL_S=0.01
"""
EVERYWHERE = ["--project=my-project", "--zone=us-east5-b", "--quiet"]
ON_GKE = ["--project=my-project", "--zone=us-east5-b", "--cluster=tpus"]
TRAIN = [
    *("95m", "hardware=tpu", "attention=flash", "enable_autocheckpoint=true"),
    *("network_train_files=gs://data/probes/rows/train", "network_eval_files=gs://data/probes/rows/test"),
    *("base_output_directory=gs://results/runs", "run_name=first run"),
    *("network_cache_dir=/mnt/disks/cache", "steps=50000", "checkpoint_period=1000"),
]  # fmt: skip

RECORD = """#!/usr/bin/env bash
{ printf '%s\\037' "${0##*/}" "$@"; printf '\\036'; } >>"$CALLS"
next() { # FILE: prints its first line and removes it, but for the last
  local line; line=$(head -n 1 "$1")
  (($(wc -l <"$1") < 2)) || sed -i 1d "$1"
  echo "$line"
}
"""
GCLOUD = """
if [[ " $* " == *' describe '* ]]; then
  [[ -e $FAKES/describe ]] || exit 1
  answer=$(next "$FAKES/describe")
  [[ $answer != missing ]] || exit 1
  echo "$answer"
elif [[ "$*" == *host.sh\\ state* && -e $FAKES/hosts ]]; then
  next "$FAKES/hosts"
elif [[ -n ${HOST_HOME:-} && " $* " == *' scp '* ]]; then
  cp "$5" "$HOST_HOME"
elif [[ -n ${HOST_HOME:-} ]]; then
  for word in "$@"; do
    [[ $word != --command=* ]] || (cd "$HOST_HOME" && HOME=$HOST_HOME bash -c "${word#--command=}")
  done
fi
"""
# `uv venv` makes the fake Python; sudo runs nothing, but keeps what tee would write.
UV = """
[[ $1 != venv ]] || { mkdir -p "${@: -1}/bin"; cp "$FAKES/python" "${@: -1}/bin/python"; }
"""
SUDO = """
[[ $1 != tee ]] || cat >"$FAKES/${2##*/}"
[[ $1 != blkid ]] || exit "$(cat "$FAKES/blkid")"
"""
PYTHON = """
trap 'echo "got SIGTERM" >>"$FAKES/python.log"; exit 143' TERM
printf '%s\\n' "$DECOUPLE_GCLOUD $LIBTPU_INIT_ARGS $PWD" >>"$FAKES/python.log"
code=$(next "$FAKES/codes")
if [[ $code == forever ]]; then
  sleep 60 & echo $! >"$FAKES/worker"
  touch "$FAKES/running"
  wait $!
fi
exit "$code"
"""


class Tree:
    """A copy of the templates, the fakes in PATH, and what they were called with."""

    def __init__(self, folder: Path):
        self.root = folder / "probe line"
        self.fakes, self.calls_file, self.home = folder / "fakes", folder / "calls", folder / "home"
        self.settings = folder / "my settings.sh"
        shutil.copytree(TEMPLATES, self.root / "templates/tpu")
        for path in ("beam_pipeline/__init__.py", "training/configs/95m.yml", "training/own.yml"):
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).touch()
        (self.root / "training/__pycache__").mkdir()
        (self.root / "training/__pycache__/x.pyc").touch()
        for name in ("setup.py", "pyproject.toml", "README.md"):
            (self.root / name).touch()
        self.home.mkdir()
        self.settings.write_text(SETTINGS)
        programs = {
            "gcloud": GCLOUD,
            "sudo": SUDO,
            "uv": UV,
            "python": PYTHON,
            "mountpoint": "exit 1",
        }
        programs |= dict.fromkeys(
            ("xpk", "docker", "kubectl", "gcsfuse", "fusermount", "systemctl"), ""
        )
        for name, body in programs.items():
            self.answer(name, RECORD + body).chmod(0o755)
        self.answer("blkid", "0")
        self.environment = {
            "PATH": f"{self.fakes}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.home),
            "CALLS": str(self.calls_file),
            "FAKES": str(self.fakes),
            "SETTINGS": str(self.settings),
        }

    def answer(self, name: str, *lines: str) -> Path:
        """Writes a file that a fake reads; a list of answers is used up but for the last."""
        path = self.fakes / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
        return path

    def change(self, text: str) -> None:
        self.settings.write_text(SETTINGS + text)

    def run(self, script: str, *arguments: str, code: int = 0, **environment: str) -> str:
        """Runs a script; returns what it prints, its errors if it fails."""
        result = subprocess.run(
            ["bash", str(self.root / "templates/tpu" / script), *arguments],
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=20,
        )
        assert result.returncode == code, result.stdout + result.stderr
        return result.stderr if code else result.stdout

    def calls(self, program: str | None = None) -> list[list[str]]:
        """Returns all calls so far, or those of one program, in order."""
        if not self.calls_file.exists():
            return []
        calls = [call.split("\037")[:-1] for call in self.calls_file.read_text().split("\036")[:-1]]
        return [call for call in calls if program in (None, call[0])]

    def host_sh(self, command: str, *arguments: str) -> list[str]:
        """Returns a command line that runs host.sh where the hosts have it."""
        return [
            "bash",
            str(self.home / "probeline/source/templates/tpu/host.sh"),
            command,
            *arguments,
        ]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def remote(call: list[str]) -> str:
    """The line of shell that a call of gcloud ssh runs on the hosts."""
    return next(word for word in call if word.startswith("--command=")).removeprefix("--command=")


def one_line(errors: str) -> str:
    assert errors.count("\n") == 1 and errors.startswith("error: "), errors
    return errors


# --- the files ----------------------------------------------------------------------------------


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_are_valid_shell(script: str) -> None:
    subprocess.run(["bash", "-n", str(TEMPLATES / script)], check=True)
    text = (TEMPLATES / script).read_text()
    assert os.access(TEMPLATES / script, os.X_OK) == text.startswith("#!/usr/bin/env bash\n")


def setting_names() -> set[str]:
    return set(re.findall(r"^([A-Z_]+)=", (TEMPLATES / "settings.sh").read_text(), re.MULTILINE))


def test_every_setting_is_used_and_every_variable_is_one() -> None:
    used, own = set(), {"SETTINGS", "HOME", "PATH", "IFS", "BASH_VERSINFO", "BASH_VERSION"}
    for script in ("common.sh", "project.sh", "queued_resources.sh", "xpk.sh"):
        text = (TEMPLATES / script).read_text()
        text += " ".join(
            "$" + name for names in re.findall(r"need(?:_gs)? (.+)", text) for name in names.split()
        )
        used |= set(re.findall(r"\$\{?[#!]?([A-Z][A-Z_]+)", text)) - {"BASH_SOURCE"}
        own |= set(re.findall(r"(?:^|readonly |\s)([A-Z_]+)\+?=", text, re.MULTILINE))
    assert setting_names() - used == set()
    assert used - setting_names() - own == set()


def test_every_setting_says_what_it_is() -> None:
    for line in (TEMPLATES / "settings.sh").read_text().splitlines():
        if re.match(r"[A-Z_]+=", line) and not line.startswith("GCSFUSE_FLAGS="):
            assert re.search(r"\s# \S", line), line


def test_the_image_is_made_of_files_that_are_there() -> None:
    text = (TEMPLATES / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (.+)", text, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
    assert "FROM python:3.12-" in text


def packaging_of(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Returns what setup.py tells setuptools."""
    told: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", told.update)
    runpy.run_path(str(ROOT / "setup.py"))
    return told


def test_a_host_gets_versions_that_setup_py_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (TEMPLATES / "constraints.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    told = packaging_of(monkeypatch)
    extras = told["extras_require"]
    wanted = [*told["install_requires"], *extras["training"], *extras["tpu"]]
    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(pinned[requirement.name]), requirement
    tested = [
        Requirement(line)
        for line in (ROOT / "requirements.txt").read_text().splitlines()
        if line[0] != "#"
    ]
    for requirement in tested:
        assert requirement.specifier.contains(pinned[requirement.name]), requirement


def test_training_knows_every_key_that_it_is_given(tree: Tree) -> None:
    line = tree.run("queued_resources.sh", "--dry-run", "train")
    given = shlex.split(remote(shlex.split(line)))
    given = given[given.index("--") + 1 :]
    line = tree.run("xpk.sh", "--dry-run", "train")
    given += shlex.split(remote(shlex.split(line)))[4:]
    text = (TEMPLATES / "settings.sh").read_text()
    text = text.split("\nTRAIN_ARGUMENTS=(")[1].split("\n)")[0].partition("\n")[2]
    keys = {word.split("=")[0] for word in given if "=" in word}
    keys |= set(re.findall(r"(\w+)=", text))  # those of its comments, too
    script = (
        "import json; from maxtext.configs import types; "
        "print(json.dumps(list(types.MaxTextConfig.model_fields)))"
    )
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "DECOUPLE_GCLOUD": "TRUE"}
    printed = subprocess.check_output([sys.executable, "-c", script], env=environment, text=True)
    known = set(json.loads(printed.splitlines()[-1]))
    assert {key for key in keys if key not in known and not OUR_KEYS.fullmatch(key)} == set()
    assert {"grain_worker_count", "network_train_files", "steps"} <= keys


# --- queued resources ---------------------------------------------------------------------------


def test_create_asks_for_a_spot_slice(tree: Tree) -> None:
    tree.run("queued_resources.sh", "create")
    assert tree.calls() == [
        [
            *("gcloud", "compute", "tpus", "queued-resources", "create", "pod-1"),
            *("--node-id=pod-1", "--accelerator-type=v6e-16"),
            *("--runtime-version=v2-alpha-tpuv6e", "--spot"),
            *("--service-account=train@my-project.iam.gserviceaccount.com", *EVERYWHERE),
        ]
    ]  # fmt: skip


def test_create_takes_other_capacity_and_flags(tree: Tree) -> None:
    tree.change(
        "SPOT=false SERVICE_ACCOUNT= GCLOUD=(gcloud alpha)\n"
        "CREATE_FLAGS=(--provisioning-model=flex-start '--labels=a=b c')"
    )
    tree.run("queued_resources.sh", "create")
    (call,) = tree.calls()
    assert call[:4] == ["gcloud", "alpha", "compute", "tpus"]
    assert call[-5:] == ["--provisioning-model=flex-start", "--labels=a=b c", *EVERYWHERE]
    assert not [word for word in call if word.startswith(("--spot", "--service-account"))]


def test_delete_takes_slice_and_request(tree: Tree) -> None:
    tree.run("queued_resources.sh", "delete")
    assert [call[4:] for call in tree.calls()] == [["delete", "pod-1", "--force", *EVERYWHERE]]


def test_setup_waits_then_copies_then_installs(tree: Tree) -> None:
    tree.answer("describe", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE")
    tree.change("SSH_FLAGS=(--internal-ip)")
    tree.run("queued_resources.sh", "setup")
    calls = [call[3:] for call in tree.calls("gcloud")]
    assert [call[1] for call in calls] == ["describe"] * 3 + ["scp", "ssh", "ssh"]
    package = tree.root / "build/probeline.tgz"
    assert calls[3] == [
        *("tpu-vm", "scp", str(package), "pod-1:", "--internal-ip", "--worker=all"),
        *EVERYWHERE,
    ]
    for call in calls[4:]:
        assert call[:5] == ["tpu-vm", "ssh", "pod-1", "--internal-ip", "--worker=all"]
        assert call[6:] == EVERYWHERE
    members = subprocess.check_output(["tar", "-tzf", package], text=True).split()
    assert {"setup.py", "beam_pipeline/__init__.py", "templates/tpu/host.sh"} <= set(members)
    assert not [name for name in members if "__pycache__" in name]


@pytest.mark.parametrize("state", ["FAILED", "SUSPENDED"])
def test_setup_does_not_wait_for_a_slice_that_will_not_come(tree: Tree, state: str) -> None:
    tree.answer("describe", "WAITING_FOR_RESOURCES", state)
    errors = tree.run("queued_resources.sh", "setup", code=1)
    assert f"error: the slice pod-1 is {state}, it will not come: " in errors


def test_train_hands_every_word_on(tree: Tree) -> None:
    tree.run("queued_resources.sh", "train", "steps=7", "grain_visualization_dir=gs://a b/$(x) 'y'")
    (call,) = tree.calls()
    assert call[3:7] == ["tpu-vm", "ssh", "pod-1", "--worker=all"]
    words = shlex.split(remote(call))
    assert words[:3] == ["bash", "probeline/source/templates/tpu/host.sh", "start"]
    assert "LIBTPU_INIT_ARGS=--xla_a=true --xla_b='x'" in words[3 : words.index("--")]
    assert words[words.index("--") + 1 :] == [
        *TRAIN,
        "steps=7",
        "grain_visualization_dir=gs://a b/$(x) 'y'",
    ]


def test_train_reads_through_gcsfuse_without_a_cache(tree: Tree) -> None:
    tree.change("GCSFUSE_DIR=/mnt/gcs CACHE_DIR= MODEL=training/own.yml")
    tree.run("queued_resources.sh", "train")
    words = shlex.split(remote(tree.calls()[0]))
    assert "GCSFUSE_BUCKET=data" in words
    arguments = words[words.index("--") + 1 :]
    assert arguments[0] == "training/own.yml"
    assert "network_train_files=/mnt/gcs/probes/rows/train" in arguments
    assert not [word for word in arguments if word.startswith("network_cache_dir")]


def test_logs_follow_one_host_or_all(tree: Tree) -> None:
    tree.run("queued_resources.sh", "logs")
    tree.run("queued_resources.sh", "logs", "3")
    tree.run("queued_resources.sh", "logs", "all")
    workers = [call[6] for call in tree.calls()]
    assert workers == ["--worker=0", "--worker=3", "--worker=all"]
    assert "train.log | sed" in remote(tree.calls()[2])


def test_status_asks_the_hosts_of_a_slice_that_is_there(tree: Tree) -> None:
    tree.answer("describe", "PROVISIONING", "ACTIVE")
    tree.answer("hosts", "host w-0: training")
    assert tree.run("queued_resources.sh", "status") == "slice pod-1: PROVISIONING\n"
    printed = tree.run("queued_resources.sh", "status")
    assert printed == "slice pod-1: ACTIVE\nhost w-0: training\n"


# --- keep ---------------------------------------------------------------------------------------


def verbs(tree: Tree) -> list[str]:
    """What `keep` did, without looking."""
    names = []
    for call in tree.calls("gcloud"):
        verb = call[4]
        if verb == "ssh":
            verb = remote(call).split("host.sh ")[-1].split(" ")[0]
        if verb not in ("describe", "state", "state;"):
            names.append(verb)
    return names


def test_keep_makes_the_slice_again_after_a_preemption(tree: Tree) -> None:
    states = ["missing", "WAITING_FOR_RESOURCES", *["ACTIVE"] * 4, "SUSPENDING"]
    tree.answer("describe", *states, "SUSPENDED", "missing", "ACTIVE")
    tree.answer(
        "hosts",
        *("host w-0: not set up", "ssh timed out", "host w-0: training", "host w-0: not set up"),
        *("host w-0: training restart 1 of 3 after code 143", "host w-0: ended with 0"),
    )
    tree.run("queued_resources.sh", "keep", "steps=9")
    once = ["create", "scp", "rm", "setup", "start"]
    assert verbs(tree) == [*once, "delete", *once]
    trains = [remote(call) for call in tree.calls("gcloud") if " start " in " ".join(call)]
    assert len(set(trains)) == 1 and trains[0].endswith(" steps=9")


@pytest.mark.parametrize(
    ("hosts", "code", "says"),
    [
        ("host w-0: ended with 2", 2, "training refused its arguments"),
        ("host w-0: ended with 1", 1, "training ended 3 times without success"),
        ("host w-0: stopped", 1, "training was stopped"),
    ],
)
def test_keep_ends_where_another_try_is_in_vain(
    tree: Tree, hosts: str, code: int, says: str
) -> None:
    tree.answer("describe", "ACTIVE")
    tree.answer("hosts", hosts)
    assert says in one_line(tree.run("queued_resources.sh", "keep", code=code))
    assert verbs(tree) == []


# --- on a host ----------------------------------------------------------------------------------


@pytest.fixture
def host(tree: Tree) -> Tree:
    """A host that was set up and told to train, by what gcloud was given for it."""
    tree.answer("describe", "ACTIVE")
    tree.run("queued_resources.sh", "setup", HOST_HOME=str(tree.home))
    tree.run("queued_resources.sh", "train", "steps=7", HOST_HOME=str(tree.home))
    return tree


def service_of(host: Tree) -> dict[str, str]:
    text = (host.fakes / "probeline-train.service").read_text()
    return dict(re.findall(r"^(\w+)=(.+)", text, re.MULTILINE))


def run_service(host: Tree, *codes: str, code: int) -> str:
    """Runs what the service runs, with a Python that ends with these codes; returns its log."""
    host.answer("codes", *codes)
    result = subprocess.run(
        shlex.split(service_of(host)["ExecStart"]),
        cwd=service_of(host)["WorkingDirectory"],
        env=host.environment,
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert result.returncode == code, result.stdout + result.stderr
    return result.stdout


def trainings(host: Tree) -> list[list[str]]:
    return host.calls("python")


def ended(host: Tree) -> str | None:
    path = host.home / "probeline/run/ended"
    return path.read_text().strip() if path.exists() else None


def test_a_host_is_set_up(host: Tree) -> None:
    source, venv = host.home / "probeline/source", host.home / "probeline/venv"
    python = str(venv / "bin/python")
    assert host.calls("uv") == [
        ["uv", "venv", "--quiet", "--allow-existing", "--python", "3.12", str(venv)],
        [
            *("uv", "pip", "install", "--quiet", "--python", python, "--constraint"),
            *(f"{source}/templates/tpu/constraints.txt", "--editable", f"{source}[training,tpu]"),
        ],
        ["uv", "pip", "check", "--quiet", "--python", python],
    ]
    assert ["sudo", "mkdir", "-p", "/mnt/disks/cache"] in host.calls("sudo")
    assert (host.fakes / "enabled").read_text() == "always\n"


def test_training_is_a_service_that_a_boot_starts_again(host: Tree) -> None:
    service, run = service_of(host), host.home / "probeline/run"
    assert service["ConditionPathExists"] == f"!{run}/ended"
    assert service["StandardOutput"] == f"append:{run}/train.log"
    assert (service["KillMode"], service["TimeoutStopSec"]) == ("mixed", "300")
    assert service["WantedBy"] == "multi-user.target"
    assert [call[2:] for call in host.calls("sudo") if call[1] == "systemctl"] == [
        ["stop", "probeline-train"],
        ["daemon-reload"],
        ["enable", "--quiet", "probeline-train"],
        ["start", "--no-block", "probeline-train"],
    ]


def test_training_starts_again_until_it_has_ended(host: Tree) -> None:
    log = run_service(host, "143", "1", "0", code=0)
    assert trainings(host) == [["python", "-m", "training.train", *TRAIN, "steps=7"]] * 3
    assert ended(host) == "0"
    assert "training ended with 143; again in 0 s, restart 1 of 3" in log
    environment, folder = (host.fakes / "python.log").read_text().split("\n")[0].rsplit(" ", 1)
    assert environment == "FALSE --xla_a=true --xla_b='x'"
    assert folder == str(host.home / "probeline/source")


def test_a_wrong_usage_is_not_tried_again(host: Tree) -> None:
    run_service(host, "143", "2", "0", code=2)
    assert len(trainings(host)) == 2
    assert ended(host) == "2"
    host.run("queued_resources.sh", "train", HOST_HOME=str(host.home))
    assert ended(host) is None


def test_a_run_that_only_fails_is_given_up(host: Tree) -> None:
    run_service(host, "1", code=1)
    assert len(trainings(host)) == 1 + 3
    assert ended(host) == "1"


def test_stopping_lets_training_save_and_leaves_nothing(host: Tree) -> None:
    host.change("MAX_RESTARTS=0")
    host.run("queued_resources.sh", "train", HOST_HOME=str(host.home))
    host.answer("codes", "forever")
    loop = subprocess.Popen(
        shlex.split(service_of(host)["ExecStart"]),
        cwd=host.home,
        env=host.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 10
        while not (host.fakes / "running").exists():
            assert time.monotonic() < deadline and loop.poll() is None
            time.sleep(0.01)
        loop.send_signal(signal.SIGTERM)
        assert loop.wait(10) == 143
    finally:
        loop.kill()
    assert "got SIGTERM" in (host.fakes / "python.log").read_text()
    assert len(trainings(host)) == 1
    assert ended(host) is None, "the next boot, or train, goes on"
    worker = int((host.fakes / "worker").read_text())
    while Path(f"/proc/{worker}/stat").exists():  # a zombie until init has read its end
        if Path(f"/proc/{worker}/stat").read_text().split()[2] == "Z":
            break
        assert time.monotonic() < deadline
        time.sleep(0.01)


def state_of(host: Tree) -> str:
    command = host.host_sh("state")
    line = subprocess.check_output(command, env=host.environment, text=True)
    return line.split(": ", 1)[1].strip()


def test_a_host_says_what_it_does(host: Tree) -> None:
    assert state_of(host) == "training"
    (host.home / "probeline/run/restarts").write_text("restart 1 of 3 after code 143\n")
    assert state_of(host) == "training restart 1 of 3 after code 143"
    host.answer("systemctl", RECORD, "[[ $1 == is-enabled ]]")
    assert state_of(host) == "starting"
    host.answer("systemctl", RECORD, "false")
    assert state_of(host) == "stopped"
    (host.home / "probeline/run/ended").write_text("0\n")
    assert state_of(host) == "ended with 0"
    shutil.rmtree(host.home / "probeline/venv")
    assert state_of(host) == "not set up"


def prepare(host: Tree, **variables: str) -> list[list[str]]:
    """Returns what preparing a host with these variables called."""
    host.calls_file.unlink(missing_ok=True)
    subprocess.run(host.host_sh("prepare"), env=host.environment | variables, check=True)
    return [call for call in host.calls() if call[1:3] != ["tee", call[-1]]]


@pytest.mark.parametrize("blank", [True, False])
def test_a_disk_for_the_cache_is_formatted_only_if_it_is_blank(host: Tree, blank: bool) -> None:
    host.answer("blkid", "2" if blank else "0")
    calls = prepare(host, CACHE_DIR="/mnt/disks/c", CACHE_DEVICE="/dev/sdb")
    programs = [call[1] for call in calls if call[0] == "sudo"]
    make = ["mkfs.ext4"] if blank else []
    assert programs == ["blkid", *make, "mkdir", "mount", "mkdir", "chown"]
    assert ["sudo", "mount", "-o", "noatime,discard", "/dev/sdb", "/mnt/disks/c"] in calls


def test_the_datasets_bucket_is_mounted_read_only(host: Tree) -> None:
    calls = prepare(
        host, GCSFUSE_DIR="/mnt/gcs", GCSFUSE_BUCKET="data", GCSFUSE_FLAGS="--implicit-dirs --a=-1"
    )
    mount = ["gcsfuse", "-o", "ro", "--implicit-dirs", "--a=-1", "data", "/mnt/gcs"]
    assert calls[-1] == mount
    host.answer("mountpoint", RECORD, "exit 0")
    assert mount not in prepare(host, GCSFUSE_DIR="/mnt/gcs", GCSFUSE_FLAGS="")


# --- GKE ----------------------------------------------------------------------------------------


def test_the_image_is_built_and_pushed(tree: Tree) -> None:
    tree.run("xpk.sh", "build")
    image = "registry.example/my-project/probeline:1"
    assert tree.calls() == [
        [
            *("docker", "build", "--platform=linux/amd64"),
            *(f"--file={tree.root}/templates/tpu/Dockerfile", f"--tag={image}", str(tree.root)),
        ],
        ["docker", "push", image],
    ]


def test_a_workload_is_made(tree: Tree) -> None:
    tree.run("xpk.sh", "train", "steps=7")
    (call,) = tree.calls()
    assert call[:-4] == [
        *("xpk", "workload", "create", "--workload=pod-1"),
        *("--docker-image=registry.example/my-project/probeline:1", "--tpu-type=v6e-16"),
        *("--num-slices=1", "--max-restarts=3", "--restart-on-exit-codes=1"),
        *("--termination-grace-period-seconds=300", "--env=DECOUPLE_GCLOUD=FALSE"),
        "--env=LIBTPU_INIT_ARGS=--xla_a=true --xla_b='x'",
    ]
    assert call[-3:] == ON_GKE
    words = shlex.split(remote(call))
    assert words == ["exec", "python", "-m", "training.train", *TRAIN, "steps=7"]


def test_a_workload_gets_the_signal_that_ends_its_container(tree: Tree) -> None:
    """xpk runs `(COMMAND) & PID=$!` and hands SIGTERM to that process only."""
    tree.run("xpk.sh", "train")
    command = remote(tree.calls()[0])
    tree.answer("codes", "forever")
    container = f"({command}) & PID=$!; until [[ -e {tree.fakes}/running ]]; do sleep 0.01; done; "
    container += 'kill -TERM $PID; wait $PID; code=$?; kill "$(cat $FAKES/worker)"; exit $code'
    environment = tree.environment | {"DECOUPLE_GCLOUD": "", "LIBTPU_INIT_ARGS": ""}
    result = subprocess.run(["bash", "-c", container], env=environment, timeout=10)
    assert result.returncode == 143
    assert "got SIGTERM" in (tree.fakes / "python.log").read_text()


def test_a_cluster_and_its_storage(tree: Tree) -> None:
    tree.change("GCSFUSE_DIR=/mnt/gcs GCSFUSE_FLAGS='--implicit-dirs --a=-1'")
    for command in ("cluster", "attach", "train", "status", "delete"):
        tree.run("xpk.sh", command)
    cluster, attach, train, status, delete = tree.calls()
    assert cluster[1:] == [
        *("cluster", "create", "--tpu-type=v6e-16", "--num-slices=1", "--spot"),
        "--custom-nodepool-arguments=--disk-size=200 "
        "--service-account=train@my-project.iam.gserviceaccount.com",
        *ON_GKE,
    ]
    assert attach[1:] == [
        *("storage", "attach", "pod-1-dataset", "--type=gcsfuse", "--bucket=data", "--size=1"),
        *("--mount-point=/mnt/gcs", "--readonly=true", "--auto-mount=false"),
        *("--mount-options=implicit-dirs,a=-1", *ON_GKE),
    ]
    assert "--storage=pod-1-dataset" in train
    assert status[1:] == ["workload", "list", *ON_GKE]
    assert delete[1:] == ["workload", "delete", "--workload=pod-1", *ON_GKE]


def test_logs_of_all_pods(tree: Tree) -> None:
    tree.run("xpk.sh", "logs")
    assert "--selector=xpk.google.com/workload=pod-1" in tree.calls("kubectl")[0]


# --- project ------------------------------------------------------------------------------------


def test_a_project_gets_an_account_a_bucket_and_rights(tree: Tree) -> None:
    tree.run("project.sh")
    made = [call[1:] for call in tree.calls() if "describe" not in call]
    assert [call[:3] for call in made[1:3]] == [
        ["iam", "service-accounts", "create"],
        ["storage", "buckets", "create"],
    ]
    assert made[1][3] == "train"
    assert made[2][3:5] == ["gs://results", "--location=us-east5"]
    assert {"--enable-hierarchical-namespace", "--soft-delete-duration=0"} <= set(made[2])
    member = "--member=serviceAccount:train@my-project.iam.gserviceaccount.com"
    assert all(call[-4] == member for call in made[3:])
    assert [(call[:-4][-1], call[-3]) for call in made[3:]] == [
        ("gs://data", "--role=roles/storage.objectViewer"),
        ("gs://results", "--role=roles/storage.objectUser"),
        ("gs://results", "--role=roles/storage.legacyBucketReader"),
        ("--condition=None", "--role=roles/logging.logWriter"),
        ("--condition=None", "--role=roles/monitoring.metricWriter"),
    ]


def test_what_a_project_has_stays(tree: Tree) -> None:
    tree.answer("describe", "there")
    tree.run("project.sh")
    assert not [call for call in tree.calls() if "create" in call]


# --- --dry-run, errors --------------------------------------------------------------------------

COMMANDS = [
    *(("queued_resources.sh", command) for command in ("create", "stop", "delete")),
    ("queued_resources.sh", "train", "run_name=a b"),
    ("queued_resources.sh", "logs", "all"),
    *(("xpk.sh", command) for command in ("build", "cluster", "status", "logs", "delete")),
    ("xpk.sh", "train", "run_name=a b"),
    ("project.sh",),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_dry_run_prints_just_what_would_run(tree: Tree, command: tuple[str, ...]) -> None:
    printed = tree.run(*command, "--dry-run").splitlines()
    assert tree.calls() == []
    tree.run(*command)
    assert [shlex.split(line) for line in printed] == [
        call for call in tree.calls() if "describe" not in call
    ]


def test_a_dry_run_of_setup_and_keep(tree: Tree) -> None:
    printed = tree.run("queued_resources.sh", "--dry-run", "keep").splitlines()
    words = [shlex.split(line) for line in printed]
    assert [line[0] for line in words if line[0] != "gcloud"] == ["mkdir", "tar"]
    assert tree.run("queued_resources.sh", "setup", "--dry-run").splitlines() == printed[1:7]
    verbs = [line[4] for line in words if line[0] == "gcloud"]
    assert verbs == ["create", "describe", "scp", "ssh", "ssh", "ssh", "ssh", "delete"]
    assert tree.calls() == [] and not (tree.root / "build").exists()


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("PROJECT", ("queued_resources.sh", "create")),
        ("ZONE", ("queued_resources.sh", "logs")),
        ("NAME", ("queued_resources.sh", "delete")),
        ("ACCELERATOR_TYPE", ("queued_resources.sh", "create")),
        ("RUNTIME_VERSION", ("queued_resources.sh", "create")),
        ("DATASET", ("queued_resources.sh", "train")),
        ("OUTPUT", ("queued_resources.sh", "keep")),
        ("RUN_NAME", ("xpk.sh", "train")),
        ("MODEL", ("xpk.sh", "train")),
        ("CLUSTER", ("xpk.sh", "status")),
        ("IMAGE", ("xpk.sh", "build")),
        ("GCSFUSE_DIR", ("xpk.sh", "attach")),
        ("SERVICE_ACCOUNT", ("project.sh",)),
    ],
)
def test_a_missing_setting_is_one_line(tree: Tree, name: str, command: tuple[str, ...]) -> None:
    tree.change(f"{name}=")
    line = one_line(tree.run(*command, code=2))
    assert line == f"error: {name} is empty: set it in {tree.settings}\n"
    assert tree.calls() == []


@pytest.mark.parametrize(
    ("change", "command", "line"),
    [
        ("NAME=Pod_1", ("queued_resources.sh", "create"), "NAME is Pod_1: use a-z, 0-9 and -"),
        ("DATASET=rows", ("queued_resources.sh", "train"), "DATASET is rows: it must be gs://"),
        ("OUTPUT=gs://b", ("xpk.sh", "train"), "OUTPUT is gs://b: it must be gs://bucket/folder"),
        ("MODEL=96m", ("xpk.sh", "train"), "MODEL is 96m: it must be the name of a file"),
        ("SPOT=yes", ("queued_resources.sh", "create"), "SPOT is yes: it must be true or false"),
        ("SERVICE_ACCOUNT=me", ("project.sh",), "SERVICE_ACCOUNT is me: it must be NAME@my-"),
        ("", ("queued_resources.sh",), "nothing is no command: create, status"),
        ("", ("queued_resources.sh", "up"), "up is no command: create, status"),
        ("", ("queued_resources.sh", "create", "x"), "create takes no x: see --help"),
        ("", ("queued_resources.sh", "logs", "x"), "x is no worker: use its number, or all"),
        ("", ("queued_resources.sh", "train", "5"), "5 is no key=value: see docs/training.md"),
        ("", ("xpk.sh", "up"), "up is no command: build, cluster"),
        ("", ("project.sh", "up"), "up is no argument of "),
    ],
)
def test_a_wrong_usage_is_one_line(
    tree: Tree, change: str, command: tuple[str, ...], line: str
) -> None:
    tree.change(change)
    assert one_line(tree.run(*command, code=2)).startswith("error: " + line)
    assert tree.calls() == []


def test_settings_that_are_not_there(tree: Tree) -> None:
    line = one_line(tree.run("xpk.sh", "status", code=2, SETTINGS="/no/such"))
    assert line.startswith("error: there is no file /no/such: SETTINGS names yours")


@pytest.mark.parametrize("script", ["queued_resources.sh", "xpk.sh", "project.sh"])
def test_help_names_every_command(tree: Tree, script: str) -> None:
    text = (TEMPLATES / script).read_text()
    printed = tree.run(script, "--help")
    assert f"templates/tpu/{script} [--dry-run]" in printed
    for names in re.findall(r"^  ([a-z][a-z |]*)\)", text, re.MULTILINE):
        for name in names.split(" | "):
            assert f"  {name} " in printed, name


def test_a_program_that_is_not_installed(tree: Tree) -> None:
    (tree.fakes / "xpk").unlink()
    assert one_line(tree.run("xpk.sh", "status", code=1)).startswith("error: xpk is not installed")
