"""templates/tpu/host.sh: a host that is set up, and trains until it ends, fails or is stopped."""

import re
import shlex
import shutil
import signal
import subprocess

import psutil
import pytest

from tests.support.tpu_helpers import TRAIN, Tree
from tests.support.tpu_helpers import tree as tree
from tests.support.waiting import HANG_S, wait_until


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
        timeout=HANG_S,
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
            *(f"{source}/templates/tpu/constraints.txt", "--editable", f"{source}[tpu]"),
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
        assert wait_until((host.fakes / "running").exists, lambda: loop.poll() is None)
        loop.send_signal(signal.SIGTERM)
        assert loop.wait(HANG_S) == 143
    finally:
        loop.kill()
    assert "got SIGTERM" in (host.fakes / "python.log").read_text()
    assert len(trainings(host)) == 1
    assert ended(host) is None, "the next boot, or train, goes on"
    assert wait_until(lambda: not is_running(int((host.fakes / "worker").read_text())))


def is_running(process: int) -> bool:
    """Returns whether it runs; one that has ended is a zombie until init reads its status."""
    return psutil.pid_exists(process) and psutil.Process(process).status() != psutil.STATUS_ZOMBIE


def state_of(host: Tree) -> str:
    command = host.host_sh("state")
    line = subprocess.check_output(command, env=host.environment, text=True)
    return line.split(": ", 1)[1].strip()


def test_a_host_says_what_it_does(host: Tree) -> None:
    assert state_of(host) == "training"
    (host.home / "probeline/run/restarts").write_text("restart 1 of 3 after code 143\n")
    assert state_of(host) == "training restart 1 of 3 after code 143"
    host.programs.add("systemctl", "[[ $1 == is-enabled ]]")
    assert state_of(host) == "starting"
    host.programs.add("systemctl", "false")
    assert state_of(host) == "stopped"
    (host.home / "probeline/run/ended").write_text("0\n")
    assert state_of(host) == "ended with 0"
    shutil.rmtree(host.home / "probeline/venv")
    assert state_of(host) == "not set up"


def prepare(host: Tree, **variables: str) -> list[list[str]]:
    """Returns what preparing a host with these variables called."""
    host.programs.forget_calls()
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
    host.programs.add("mountpoint", "exit 0")
    assert mount not in prepare(host, GCSFUSE_DIR="/mnt/gcs", GCSFUSE_FLAGS="")
