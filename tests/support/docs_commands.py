"""The commands and code on the pages, and the tests that execute them, in one list.

`EXECUTED` names the test of each block. The tests of test_docs_commands.py and test_docs_google.py
get the text of their blocks from `taken`, so what is listed is what runs. `NOT_EXECUTED` has the
rest and the reasons. A `Desk` runs the blocks.
"""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from beam_pipeline import generate
from tests.support import documents
from tests.support.clean_environment import done
from tests.support.documents import Block
from tests.support.repository import ROOT
from tests.support.stand_ins import StandIns
from tests.support.waiting import HANG_S
from tests.support.warm_python import warm_python

LANGUAGES = ("sh", "python", "sql")
HERE, GOOGLE = "repo/test_docs_commands.py", "repo/test_docs_google.py"
ATLAS = "repo/test_ripe_atlas_docs.py"
ATLAS_COMMANDS = f"{ATLAS}::test_the_commands_run"
ENGINES = f"{HERE}::test_engines"
COMPACT = (
    "beam_pipeline/overlap/job/test_details_limit.py"
    "::test_compact_details_are_joined_with_their_texts"
)
ARRAY_RECORD_IO = "repo/test_array_record_docs.py::test_the_code_of_the_page_runs"
WITH_TORCH = "training/with_torch/test_pages.py"
SESSIONS = "repo/test_array_record_docs.py::test_the_sessions_of_the_example"
INSPECT = "beam_pipeline/inspect/test_inspect_rows.py::test_the_commands_of_the_docs_run"
# By page: how a block begins, and the test that executes it.
EXECUTED: dict[str, dict[str, str]] = {
    "README.md": {
        "python -m beam_pipeline.generate": f"{HERE}::test_your_data",
        "from array_record.python": f"{HERE}::test_your_data",
        "from training.dataset": f"{HERE}::test_your_data",
        "from beam_pipeline.array_record_io": f"{HERE}::test_array_record_for_beam",
        "python -m beam_pipeline.main --input 'gs://": f"{GOOGLE}::test_on_dataflow",
        "python -m training.train tiny": f"{HERE}::test_training",
        "python -m beam_pipeline.overlap": f"{HERE}::test_overlap",
    },
    "docs/training_data.md": {
        "from training.dataset": f"{HERE}::test_your_data",
        "import numpy as np\nfrom training.tokenizer": f"{HERE}::test_your_data",
        "from torch.utils": f"{WITH_TORCH}::test_the_code_of_the_page",
        "mixture = {": f"{HERE}::test_mixtures_and_weights",
        "row_weights = {": f"{HERE}::test_mixtures_and_weights",
    },
    "docs/format.md": {
        "import pyarrow as pa": f"{HERE}::test_your_data",
        "SELECT src_addr": f"{HERE}::test_your_data",
        "python -m beam_pipeline.main": f"{HERE}::test_tensorflow",
        "import mlcroissant": f"{HERE}::test_your_data",
        "import tensorflow as tf\n\nfeatures": f"{HERE}::test_tensorflow",
        "import tensorflow as tf\n\ntf.data": f"{HERE}::test_tensorflow",
        "import apache_beam as beam": f"{HERE}::test_readers_of_tfrecord",
    },
    "docs/growing.md": {
        "python -m beam_pipeline.main --input 'data/measure": f"{HERE}::test_growing",
        "python -m beam_pipeline.main --input 'data/*": f"{HERE}::test_sample",
    },
    "docs/convert.md": {
        "python -m beam_pipeline.convert": f"{HERE}::test_convert",
        "import glob, grain": f"{HERE}::test_convert",
    },
    "docs/array_record_io.md": {
        "import apache_beam": ARRAY_RECORD_IO,
        "import struct": ARRAY_RECORD_IO,
    },
    "docs/dataflow.md": {
        "python -m beam_pipeline.main --input 'gs://": f"{GOOGLE}::test_on_dataflow",
    },
    "docs/privacy.md": {
        "openssl rand -hex 32 | tr": f"{GOOGLE}::test_on_dataflow",
        "openssl rand -hex 32 > key.hex": f"{HERE}::test_privacy",
    },
    "docs/flex_templates.md": {
        "export PROJECT=": f"{GOOGLE}::test_flex_templates",
        "templates/launch.sh": f"{GOOGLE}::test_flex_templates",
    },
    "docs/training.md": {
        "pip install": f"{HERE}::test_training",
        "cat > run.sh": f"{GOOGLE}::test_tpu_slice",
        "templates/tpu/xpk.sh": f"{GOOGLE}::test_tpu_on_gke",
    },
    "docs/overlap.md": {
        "python -m beam_pipeline.overlap": f"{HERE}::test_overlap",
        "from beam_pipeline.overlap": f"{HERE}::test_overlap",
        "FROM 'overlap/stats/overlap_details": COMPACT,
    },
    "docs/engines.md": {
        "python -m beam_pipeline.main --input 'data/*.parquet' --output rows\n": ENGINES,
        "scripts/build_prism.sh": ENGINES,
        "scripts/flink_server.sh": ENGINES,
        "python -m beam_pipeline.main --input 'data/*.parquet' --output rows-of-flink": ENGINES,
    },
    "docs/learning.md": {"python -m beam_pipeline.generate": f"{HERE}::test_learning"},
    "benchmarks/README.md": {"for peer in": f"{HERE}::test_peers"},
    "examples/README.md": {
        "make notebook": f"{HERE}::test_notebook_commands",
        "cd examples/go_reader": f"{HERE}::test_go_reader",
        "python examples/sessions.py": SESSIONS,
        "pip install '.[torch]'": f"{WITH_TORCH}::test_the_example_in_pytorch",
        "pip install '.[maxtext]'": "repo/test_examples.py::test_the_example_in_jax",
    },
    "docs/ripe_atlas.md": {
        "bq query": f"{HERE}::test_atlas_commands",
        "curl -sI": f"{HERE}::test_atlas_commands",
        "EXPORT DATA": f"{ATLAS}::test_the_export_selects_what_the_job_reads",
        "sed '1,": f"{ATLAS}::test_the_dry_run_is_of_the_query_alone",
        "for day in": f"{ATLAS}::test_the_loop_exports_seven_days",
        "day=2026": f"{ATLAS}::test_a_day_is_downloaded",
        "python -m beam_pipeline.main --input 'dumps/": ATLAS_COMMANDS,
        "gcloud storage cp": ATLAS_COMMANDS,
        "python -m beam_pipeline.main --input 'gs://BUCKET/atlas": ATLAS_COMMANDS,
        "python -m beam_pipeline.main --input 'gs://BUCKET/dumps": ATLAS_COMMANDS,
        "python -c": ATLAS_COMMANDS,
    },
    "docs/inspect.md": {
        "python -m beam_pipeline.inspect": INSPECT,
        "python -m beam_pipeline.generate": INSPECT,
        "SELECT row_number": INSPECT,
    },
}
NOT_EXECUTED: dict[str, dict[str, str]] = {
    "README.md": {"make demo": "continuous integration runs both on a clean clone"},
    "CONTRIBUTING.md": {"make setup": "continuous integration runs all of them on a clean clone"},
}


def all_blocks() -> list[Block]:
    """Returns all blocks of the pages that a person may copy."""
    found = [block for page in documents.pages() for block in documents.blocks(page)]
    return [block for block in found if block.language in LANGUAGES]


def listed(page: str) -> list[str]:
    """Returns how the listed blocks of a page begin."""
    return [*EXECUTED.get(page, {}), *NOT_EXECUTED.get(page, {})]


def taken(test: str) -> list[str]:
    """Returns the texts of the blocks that a test of test_docs_commands or _google executes."""
    names = {f"{HERE}::{test}", f"{GOOGLE}::{test}"}
    texts = []
    for page, starts in EXECUTED.items():
        for start in [start for start, name in starts.items() if name in names]:
            (block,) = [b for b in all_blocks() if b.page == page and b.text.startswith(start)]
            texts.append(block.text)
    assert texts, f"{test} is not in tests/support/docs_commands.py"
    return texts


# Our own programs start with their imports done.
_PYTHON = """\
case "$1 $2" in
  "-m beam_pipeline"* | "-m training"*) exec {} "$@" ;;
  *) exec {} "$@" ;;
esac"""


class Desk:
    """A folder to run commands in; `python` is this one, other programs may be stand-ins."""

    def __init__(self, folder: Path):
        self.folder = folder
        programs = StandIns(folder / ".bin")
        self.stand_in, self.calls = programs.add, programs.calls
        self.stand_in("python", _PYTHON.format(shlex.join(warm_python()), sys.executable))
        stand_ins, _, system = programs.variables["PATH"].partition(":")
        self.variables = {
            **programs.variables,
            "PATH": f"{stand_ins}:{Path(sys.executable).parent}:{system}",
            "HOME": str(folder),
            "PYTHONSAFEPATH": "1",  # the package of this checkout, not a copy in the folder
            "PYTHONPATH": str(ROOT),
        }

    def sh(self, block: str, replace: dict[str, str] | None = None, **variables: str) -> str:
        """Runs a block, with replacements of text that it must contain; returns what it prints."""
        for old, new in (replace or {}).items():
            assert old in block, f"{old} is to be replaced, but missing"
            block = block.replace(old, new)
        result = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            cwd=self.folder,
            env={**os.environ, **self.variables, **variables},
            capture_output=True,
            text=True,
            timeout=HANG_S,
        )
        print(block, result.stdout[-4000:], result.stderr[-4000:])  # seen if the test fails
        done(result)  # skips where a block installs something and no index answers
        return result.stdout

    def python(self, *pieces: str, python: str | Path = "python") -> str:
        """Runs blocks of Python, and what a test puts between them, as one script."""
        (self.folder / "script.py").write_text("\n".join(pieces))
        return self.sh(f"{shlex.quote(str(python))} script.py")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder `data` of measurements: enough probes for five shards."""
    folder = tmp_path_factory.mktemp("presumed") / "data"
    flags = ["--num_measurements=200000", "--num_probes=5200", "--num_anchors=40"]
    assert generate.main([f"--output={folder}", *flags]) == 0
    return folder


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "desk")


# What gcloud 528 and bq take, of what pages and templates/ name; from their own tables. They are
# documented at GCLOUD_REFERENCE, with a slash for each space, and at BQ_REFERENCE.
GCLOUD_REFERENCE = "https://docs.cloud.google.com/sdk/gcloud/reference/"
BQ_REFERENCE = "https://docs.cloud.google.com/bigquery/docs/reference/bq-cli-reference"
_OF_ALL = {"--project", "--quiet", "--format", "--impersonate-service-account"}
GCLOUD: dict[str, set[str]] = {
    "alpha compute tpus tpu-vm ssh": {"--tunnel-through-iap"},
    "artifacts repositories create": {"--repository-format", "--location"},
    "auth application-default login": set(),
    "builds submit": {"--region", "--config", "--substitutions"},
    "compute tpus queued-resources create": {
        *("--node-id", "--zone", "--accelerator-type", "--runtime-version", "--spot"),
        *("--service-account", "--reserved", "--data-disk"),
    },
    "compute tpus queued-resources delete": {"--zone", "--force"},
    "compute tpus queued-resources describe": {"--zone"},
    "compute tpus tpu-vm scp": {"--zone", "--worker"},
    "compute tpus tpu-vm ssh": {"--zone", "--worker", "--command"},
    "dataflow flex-template build": {"--image", "--sdk-language", "--metadata-file"},
    "dataflow flex-template run": {
        *("--region", "--template-file-gcs-location", "--temp-location", "--staging-location"),
        *("--service-account-email", "--parameters", "--max-workers", "--worker-machine-type"),
        *("--num-workers", "--disable-public-ips", "--subnetwork", "--additional-user-labels"),
    },
    "iam service-accounts create": {"--display-name"},
    "iam service-accounts describe": set(),
    "projects add-iam-policy-binding": {"--member", "--role", "--condition"},
    "secrets create": {"--data-file"},
    "services enable": set(),
    "storage buckets add-iam-policy-binding": {"--member", "--role"},
    "storage buckets create": {
        *("--location", "--uniform-bucket-level-access", "--enable-hierarchical-namespace"),
        "--soft-delete-duration",
    },
    "storage buckets describe": set(),
    "storage cp": {"-r"},
    "storage rm": set(),
}
BQ = {
    "query": {"--use_legacy_sql", "--project_id", "--dry_run", "--maximum_bytes_billed"},
    "show": {"--format"},
}


def flags_of_google() -> set[str]:
    """Returns all flags of gcloud and bq that a page may name."""
    return {flag for flags in (*GCLOUD.values(), *BQ.values(), _OF_ALL) for flag in flags}


def check_call(call: list[str]) -> None:
    """Checks the words of a call of gcloud or bq: that there is such a command, and its flags."""
    program, *words = call
    known = GCLOUD if program == "gcloud" else BQ
    commands = [name for name in known if words[: len(name.split())] == name.split()]
    assert commands, f"{program} has no command like {shlex.join(words)}"
    rest = words[len(commands[0].split()) :]
    flags = {word.partition("=")[0] for word in rest if word.startswith("-") and word != "-"}
    allowed = known[commands[0]] | (_OF_ALL if program == "gcloud" else set())
    assert flags <= allowed, f"{commands[0]}: {flags - allowed}"
