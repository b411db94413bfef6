"""The pages' commands for Google's services, against fakes and stand-ins; see docs_commands.py.

A job for Dataflow is submitted, and its work done, so that there is a dataset in the bucket. What
gcloud, xpk and docker would have been told is kept, and held against the flags that they have.
"""

import json
import re
import sys
from pathlib import Path

import pytest

from tests.support.clean_environment import copy_of_the_project
from tests.support.dataflow_api import DataflowApi
from tests.support.dataflow_helpers import dataflow as dataflow
from tests.support.dataflow_helpers import do_the_work
from tests.support.docs_commands import Desk, check_call, taken
from tests.support.docs_commands import data as data
from tests.support.docs_commands import desk as desk
from tests.support.engines import Gcs, stored_objects
from tests.support.repository import ROOT
from tests.support.stand_ins import run_script
from tests.support.tpu_helpers import Tree
from tests.support.tpu_helpers import tree as tree


@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_on_dataflow(
    desk: Desk,
    data: Path,
    gcs: Gcs,
    dataflow: DataflowApi,
    number: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Against the fakes of the services, which do the job's work: from the flags to a dataset.

    `python` adds where the fake is. The bucket is the emulator's, and the key, which would be in
    Secret Manager, is in it.
    """
    block = taken("test_on_dataflow")[number]
    bucket = gcs.make_bucket()
    folder = re.findall(r"--input 'gs://bucket/(\w+)/\*\.parquet'", block)[0]
    gcs.upload(data, f"{bucket}/{folder}")
    monkeypatch.setattr(dataflow, "_check_place", lambda project, region: None)
    reports = []
    work = desk.folder / "work"
    dataflow.worker = lambda job: reports.append(do_the_work(Path(sys.executable), work, job))
    copy_of_the_project(desk.folder)
    added = f'[[ "$*" != *DataflowRunner* ]] || set -- "$@" --dataflow_endpoint={dataflow.endpoint}'
    desk.stand_in("python", f'{added}\nexec {sys.executable} "$@"')
    desk.stand_in("gcloud", 'cat >"$HOME/secret"')
    replace = {"gs://bucket": bucket}
    if "gcloud secrets create" in block:
        secret, block = re.split(r"(?<=\n)(?=python )", block)
        desk.sh(secret)
        assert re.fullmatch(r"[0-9a-f]{64}", (desk.folder / "secret").read_text())
        gcs.upload(desk.folder / "secret", f"{bucket}/key.hex")
        replace["projects/P/secrets/probeline-key/versions/1"] = f"{bucket}/key.hex"
        for call in desk.calls("gcloud"):
            check_call(call)
    desk.sh(block, replace)
    (job,) = dataflow.jobs
    place = re.findall(r"--project=(\S+) --region=(\S+)", block)[0]
    assert (job.project_id, job.location) == place
    (pool,) = job.environment.worker_pools
    for flag, value in (
        ("worker_machine_type", pool.machine_type),
        ("max_num_workers", pool.autoscaling_settings.max_num_workers),
        ("disk_size_gb", pool.disk_size_gb),
    ):
        for asked in re.findall(rf"--{flag}=(\S+)", block):
            assert asked == str(value)
    assert "Commit the dataset" in reports[0]["steps"]
    found = stored_objects(f"{bucket}/rows")
    assert "_SUCCESS" in found
    assert json.loads(found["manifest.json"])["counts"]["rows_read"] == 200_000


def test_flex_templates(desk: Desk) -> None:
    (desk.folder / "templates").symlink_to(ROOT / "templates")
    (desk.folder / "beam_pipeline").symlink_to(ROOT / "beam_pipeline")
    desk.stand_in("gcloud", "exit 0")
    build, launch = taken("test_flex_templates")
    desk.sh(f"{build}\n{launch}")
    calls = desk.calls("gcloud")
    verbs = [" ".join(call[1:4]) for call in calls]
    assert verbs.count("dataflow flex-template build") == 1
    assert verbs.count("dataflow flex-template run") == 2
    assert verbs.count("artifacts repositories create") == 1
    known = {
        name: {p["name"] for p in json.loads(path.read_text())["parameters"]}
        for path in (ROOT / "templates").glob("*/metadata.json")
        for name in [path.parent.name]
    }
    for call in calls:
        check_call(call)
        (given,) = [word for word in call if word.startswith("--parameters=")] or [""]
        file = next((w for w in call if w.startswith("--template-file")), "")
        for parameter in given.removeprefix("--parameters=^||^").split("||") if given else []:
            (template,) = [name for name in known if f"/{name}-" in file]
            assert parameter.partition("=")[0] in known[template], parameter


def test_tpu_slice(tree: Tree) -> None:
    """A slice that comes, trains to the end, and is deleted; nobody waits between looks."""
    (block,) = taken("test_tpu_slice")
    there = ["missing", "missing", "missing", "ACTIVE"]  # account, bucket, slice
    tree.answer("describe", *there)
    tree.answer("hosts", "host w-0: not set up", "host w-0: ended with 0")
    tree.answer("sleep", "#!/bin/sh").chmod(0o755)
    run_in_tree(tree, block)
    calls = tree.calls("gcloud")
    for call in calls:
        check_call(call)
    verbs = [" ".join(call[1:5]) for call in calls if "describe" not in call]
    assert [verb for verb in verbs if "compute tpus" in verb] == [
        *("compute tpus queued-resources create", "compute tpus tpu-vm ssh"),
        *("compute tpus tpu-vm scp", *["compute tpus tpu-vm ssh"] * 5),
        "compute tpus queued-resources delete",
    ]
    assert any("network_train_tokens=4000000000" in word for call in calls for word in call)


def test_tpu_on_gke(tree: Tree) -> None:
    (block,) = taken("test_tpu_on_gke")
    run_in_tree(tree, block)
    for call in tree.calls("gcloud"):
        check_call(call)
    assert [call[1:3] for call in tree.calls("xpk")][:2] == [
        ["cluster", "create"],
        ["workload", "create"],
    ]
    assert [call[1] for call in tree.calls("docker")] == ["build", "push"]


def run_in_tree(tree: Tree, block: str) -> None:
    path = tree.root / "block.sh"
    path.write_text(f"set -eu\ncd '{tree.root}'\n{block}")
    run_script(path, environment=tree.environment)
