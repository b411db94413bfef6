"""templates/tpu/queued_resources.sh: what gcloud is told, and how `keep` proceeds."""

import shlex
import subprocess

import pytest

from tests.support.stand_ins import one_line
from tests.support.tpu_helpers import TRAIN, Tree, remote
from tests.support.tpu_helpers import tree as tree

EVERYWHERE = ["--project=my-project", "--zone=us-east5-b", "--quiet"]


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
    assert f"error: the slice pod-1 is {state}, it will not become active: " in errors


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


# --- keep -----------------------------------------------------------------------------------------


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
