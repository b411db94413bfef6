"""Training runs in tests: as processes, one a host, stopped in any way, with what they were fed.

`TrainingRun(folder, dataset).run()` is `python -m training.train tiny …` with a model of some
thousand parameters; `losses` and `fed` then tell what every step saw, each time that it ran.
"""

import collections
import json
import os
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.support.repository import ROOT
from tests.support.waiting import HANG_S, wait_until
from tests.support.warm_python import TRAINING, warm_python

GLOBAL_BATCH, CROP, STEPS = 8, 128, 12
MODEL = (
    *("base_emb_dim=32", "base_mlp_dim=64", "base_num_decoder_layers=1", "head_dim=8"),
    "enable_tensorboard=false",
)


class Ended(NamedTuple):
    """How a host's process ended, and all that it printed."""

    code: int
    output: str


class TrainingRun:
    """A run with its folder; the same arguments every time it is started."""

    def __init__(self, folder: Path, dataset: Path, *arguments: str, steps: int = STEPS):
        self.folder = folder
        self.run_folder = folder / "runs" / "test"
        self._arguments = [
            "tiny",
            f"network_train_files={dataset / 'train'}",
            f"base_output_directory={os.path.relpath(folder / 'runs', ROOT)}",
            "run_name=test",
            f"steps={steps}",
            f"learning_rate_schedule_steps={STEPS}",
            f"max_target_length={CROP}",
            "network_repeat_share=0.2",
            "checkpoint_period=3",
            "max_num_checkpoints_to_keep=20",
            f"jax_cache_dir={Path(tempfile.gettempdir(), 'jax')}",  # of all tests
            *MODEL,
            *arguments,
        ]

    def start(self, *more: str, hosts: int = 1, pace_s: float = 0.0) -> list[subprocess.Popen]:
        """Starts all hosts, one device each; the global batch does not depend on their number."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        processes = []
        for index in range(hosts):
            host = {
                "index": index,
                "count": hosts,
                "port": port,
                "folder": str(self.folder),
                "pace_s": pace_s,
            }
            batch = f"per_device_batch_size={GLOBAL_BATCH // hosts}"
            metrics = f"metrics_file={self.folder / f'metrics-{index}.jsonl'}"
            script = [*warm_python(*TRAINING), "-m", "tests.support.maxtext_host", json.dumps(host)]
            # An argument of this start replaces the run's own.
            given = [*self._arguments, batch, metrics, *more]
            arguments = {argument.partition("=")[0]: argument for argument in given}
            processes.append(
                subprocess.Popen(
                    [*script, *arguments.values()],
                    cwd=ROOT,
                    env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        return processes

    def run(self, *more: str, hosts: int = 1) -> list[Ended]:
        """Runs to the end; returns how each host ended."""
        return self.wait(self.start(*more, hosts=hosts))

    def wait(self, processes: list[subprocess.Popen]) -> list[Ended]:
        outputs = [process.communicate(timeout=HANG_S)[0] for process in processes]
        return [
            Ended(process.returncode, output)
            for process, output in zip(processes, outputs, strict=True)
        ]

    def stop_at(
        self, step: int, number: signal.Signals, hosts: int = 1, first: int = 0
    ) -> list[Ended]:
        """Runs until a step has been fed, then sends a signal to all hosts from `first` on."""
        processes = self.start(hosts=hosts, pace_s=0.2)
        are_alive = lambda: all(process.poll() is None for process in processes)  # noqa: E731
        assert wait_until(lambda: step in self.fed(), are_alive), self.wait(processes)
        for process in processes[first:]:
            process.send_signal(number)
        return self.wait(processes)

    def losses(self) -> dict[int, list[float]]:
        """Returns what was logged as the loss of each step, each time that it ran."""
        losses = collections.defaultdict(list)
        for line in _lines(self.folder / "metrics-0.jsonl"):
            losses[int(line["step"])].append(line["learning/loss"])
        return losses

    def fed(self) -> dict[int, list[np.ndarray]]:
        """Returns the inputs of the global batch of each step, each time that it ran."""
        parts = collections.defaultdict(lambda: collections.defaultdict(list))
        for index in range(GLOBAL_BATCH):
            seen = collections.Counter()
            for line in _lines(self.folder / f"fed-{index}.jsonl"):
                key = line["count"], line["step"]
                seen[key] += 1
                parts[line["step"]][line["count"], seen[key]].append(line["inputs"])
        return {
            step: [
                np.concatenate(shares)
                for (count, _), shares in times.items()
                if len(shares) == count  # not if a host was killed before it had its share
            ]
            for step, times in parts.items()
        }

    def checkpoint_steps(self) -> list[int]:
        """Returns the steps whose checkpoints are whole."""
        names = [path.name for path in (self.run_folder / "checkpoints").iterdir()]
        return sorted(int(name) for name in names if name.isdecimal())


def _lines(path: Path) -> list[dict]:
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]
