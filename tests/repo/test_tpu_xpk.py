"""templates/tpu/xpk.sh: what xpk, docker and kubectl are told."""

import shlex
import subprocess

from tests.support.tpu_helpers import TRAIN, Tree, remote
from tests.support.tpu_helpers import tree as tree
from tests.support.waiting import HANG_S

ON_GKE = ["--project=my-project", "--zone=us-east5-b", "--cluster=tpus"]


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
    result = subprocess.run(["bash", "-c", container], env=environment, timeout=HANG_S)
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
