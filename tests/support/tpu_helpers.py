"""templates/tpu with fakes of gcloud, xpk, docker and a host's programs, and what they are told.

The scripts run in a copy of the tree whose path has a space. Where `HOST_HOME` is set, the fake
gcloud copies and runs there what it is given for the hosts.
"""

import shutil
from pathlib import Path

import pytest

from tests.support.repository import ROOT
from tests.support.stand_ins import StandIns, run_script

TEMPLATES = ROOT / "templates/tpu"
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
TRAIN = [
    *("95m", "hardware=tpu", "attention=flash", "enable_autocheckpoint=true"),
    *("network_train_files=gs://data/probes/rows/train", "network_eval_files=gs://data/probes/rows/test"),
    *("base_output_directory=gs://results/runs", "run_name=first run"),
    *("network_cache_dir=/mnt/disks/cache", "checkpoint_period=1000"),
]  # fmt: skip
# Prints the first line of a file and removes it, unless it is the last.
NEXT = """
next() {
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
        self.fakes, self.home = folder / "fakes", folder / "home"
        self.settings = folder / "my settings.sh"
        shutil.copytree(TEMPLATES, self.root / "templates/tpu")
        for name in (
            *("beam_pipeline/__init__.py", "training/configs/95m.yml", "training/own.yml"),
            *("training/__pycache__/x.pyc", "setup.py", "pyproject.toml", "README.md"),
        ):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).touch()
        self.home.mkdir()
        self.settings.write_text(SETTINGS)
        self.programs = StandIns(self.fakes)
        self.calls = self.programs.calls
        for name, body in {"gcloud": GCLOUD, "sudo": SUDO, "uv": UV, "python": PYTHON}.items():
            self.programs.add(name, NEXT + body)
        self.programs.add("mountpoint", "exit 1")
        for name in ("xpk", "docker", "kubectl", "gcsfuse", "fusermount", "systemctl"):
            self.programs.add(name)
        self.answer("blkid", "0")
        self.environment = {
            **self.programs.variables,
            "HOME": str(self.home),
            "FAKES": str(self.fakes),
            "SETTINGS": str(self.settings),
        }

    def answer(self, name: str, *lines: str) -> Path:
        """Writes a file that a fake reads; a list of answers is used up but for the last."""
        path = self.fakes / name
        path.write_text("\n".join(lines) + "\n")
        return path

    def change(self, text: str) -> None:
        self.settings.write_text(SETTINGS + text)

    def run(self, script: str, *arguments: str, code: int = 0, **environment: str) -> str:
        """Runs a script; returns what it prints, its errors if it fails."""
        path, variables = self.root / "templates/tpu" / script, self.environment | environment
        return run_script(path, *arguments, environment=variables, code=code)

    def host_sh(self, command: str) -> list[str]:
        """Returns a command line that runs host.sh where the hosts have it."""
        return ["bash", f"{self.home}/probeline/source/templates/tpu/host.sh", command]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def remote(call: list[str]) -> str:
    """The line of shell that a call of gcloud ssh runs on the hosts."""
    return next(word for word in call if word.startswith("--command=")).removeprefix("--command=")
