"""templates/tpu/pod.sh with a stand-in for gcloud: the commands it runs, and its errors."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.repository import ROOT
from tests.support.stand_ins import StandIns, one_line, run_script

SCRIPT = "templates/tpu/pod.sh"
SETTINGS = """
PROJECT=my-project ZONE=us-east5-b SERVICE_ACCOUNT=train@my-project.iam.gserviceaccount.com
DATASET=gs://data/probes/rows/ OUTPUT=gs://results/runs RUN_NAME='first run' POLL_S=0
ENVIRONMENT=("LIBTPU_INIT_ARGS=--xla_a=true --xla_b='x'") SSH_FLAGS=(--internal-ip)
"""
ENDS = ["--project=my-project", "--zone=us-east5-b", "--quiet"]
TRAIN = [
    *("95m", "hardware=tpu", "attention=flash", "enable_autocheckpoint=true"),
    "network_train_files=gs://data/probes/rows/train",
    "network_eval_files=gs://data/probes/rows/test",
    *("base_output_directory=gs://results/runs", "run_name=first run"),
    *("network_cache_dir=/mnt/disks/cache", "checkpoint_period=1000"),
]
# Each `describe` takes the next state.
GCLOUD = """
[[ " $* " == *' describe '* ]] || exit 0
[[ -s $STATES ]] || exit 1
head -n 1 "$STATES"; sed -i 1d "$STATES"
"""


class Pod:
    """A copy of the script in a folder with a space, its settings, and the calls of gcloud."""

    def __init__(self, folder: Path):
        self.root, self.states = folder / "probe line", folder / "states"
        for name in (SCRIPT, "training/configs/95m.yml", "setup.py", "pyproject.toml", "README.md"):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.root / name)
        empty = (
            "beam_pipeline/__init__.py",
            "training/__pycache__/x",
            "templates/tpu/constraints.txt",
        )
        for name in empty:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).touch()
        self.programs = StandIns(folder / "programs")
        self.programs.add("gcloud", GCLOUD)
        self.settings = folder / "my settings.sh"
        self.settings.write_text(SETTINGS)
        self.environment = {
            **self.programs.variables,
            "SETTINGS": str(self.settings),
            "STATES": str(self.states),
        }

    def run(self, *arguments: str, code: int = 0, settings: str = "", states: str = "") -> str:
        self.settings.write_text(SETTINGS + settings)
        self.states.write_text(states)
        script = self.root / SCRIPT
        return run_script(script, *arguments, environment=self.environment, code=code)

    def calls(self) -> list[list[str]]:
        """Returns the words of each call after `gcloud compute tpus`, common flags removed."""
        calls = self.programs.calls("gcloud")
        assert all(
            call[:3] == ["gcloud", "compute", "tpus"] and call[-3:] == ENDS for call in calls
        )
        return [call[3:-3] for call in calls]


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    return Pod(tmp_path)


def remote(call: list[str]) -> list[str]:
    """Returns the words of the shell line that a call runs on hosts."""
    return shlex.split(call[-1].removeprefix("--command="))


def test_setup_waits_for_the_slice_and_installs(pod: Pod) -> None:
    pod.run("setup", states="WAITING_FOR_RESOURCES\nACTIVE\n")
    *waits, copy, install = pod.calls()
    assert [call[1] for call in waits] == ["describe"] * 2
    package = pod.root / "build/probeline.tgz"
    assert copy == ["tpu-vm", "scp", str(package), "probeline:", "--internal-ip", "--worker=all"]
    members = subprocess.check_output(["tar", "-tzf", package], text=True).split()
    assert {"setup.py", "beam_pipeline/__init__.py", "templates/tpu/constraints.txt"} <= {*members}
    assert not [name for name in members if "__pycache__" in name]
    assert install[:-1] == ["tpu-vm", "ssh", "probeline", "--internal-ip", "--worker=all"]
    line = install[-1].removeprefix("--command=")
    subprocess.run(["bash", "-n"], input=line, text=True, check=True)
    assert "--constraint probeline/templates/tpu/constraints.txt" in line


def test_train_quotes_every_word(pod: Pod) -> None:
    more = ["steps=7", "grain_visualization_dir=gs://a b/$(x) 'y'"]
    pod.run("train", *more)
    words = remote(pod.calls()[0])
    assert words[words.index("training.train") + 1 :] == [*TRAIN, *more]
    assert "--setenv=LIBTPU_INIT_ARGS=--xla_a=true --xla_b='x'" in words
    assert {"--property=Restart=on-failure", "--property=RestartPreventExitStatus=2"} <= {*words}


def test_a_dry_run_prints_the_commands_and_runs_none(pod: Pod) -> None:
    for command in ("create", "setup", "train", "status", "logs", "stop", "delete"):
        lines = pod.run("--dry-run", command).splitlines()
        assert any(shlex.split(line)[0] == "gcloud" for line in lines), command
    assert not pod.calls()


@pytest.mark.slow
def test_training_accepts_every_key() -> None:
    from training.maxtext.iterators import NetworkConfig

    keys = set(re.findall(r"(\w+)=", " ".join(TRAIN)))
    assert keys <= set(NetworkConfig.model_fields)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (["begin"], {}, "begin is not a command"),
        (["create", "x"], {}, "create takes no argument, not x"),
        (["create"], {"settings": "ZONE="}, "ZONE is empty"),
        (["train"], {"settings": "DATASET=rows"}, "rows is not gs://bucket/folder"),
        (["setup"], {"states": "SUSPENDED\n", "code": 1}, "is SUSPENDED"),
    ],
)
def test_errors(pod: Pod, arguments: list[str], options: dict, message: str) -> None:
    assert message in one_line(pod.run(*arguments, **{"code": 2, **options}))
