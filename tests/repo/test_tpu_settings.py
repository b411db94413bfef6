"""templates/tpu: its files and their settings, --dry-run, and the errors of all scripts."""

import re
import shlex

import pytest

from tests.support.stand_ins import check_shell, one_line
from tests.support.tpu_helpers import TEMPLATES, Tree, remote
from tests.support.tpu_helpers import tree as tree

SCRIPTS = sorted(path.name for path in TEMPLATES.glob("*.sh"))
COMMANDS = [
    *(("queued_resources.sh", command) for command in ("create", "stop", "delete")),
    ("queued_resources.sh", "train", "run_name=a b"),
    ("queued_resources.sh", "logs", "all"),
    *(("xpk.sh", command) for command in ("build", "cluster", "status", "logs", "delete")),
    ("xpk.sh", "train", "run_name=a b"),
    ("project.sh",),
]


# --- the files ------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_are_valid_shell(script: str) -> None:
    check_shell(TEMPLATES / script)


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


@pytest.mark.slow
def test_training_knows_every_key_that_it_is_given(tree: Tree) -> None:
    from training.maxtext.iterators import NetworkConfig

    line = tree.run("queued_resources.sh", "--dry-run", "train")
    given = shlex.split(remote(shlex.split(line)))
    given = given[given.index("--") + 1 :]
    line = tree.run("xpk.sh", "--dry-run", "train")
    given += shlex.split(remote(shlex.split(line)))[4:]
    text = (TEMPLATES / "settings.sh").read_text()
    text = text.split("\nTRAIN_ARGUMENTS=(")[1].split("\n)")[0].partition("\n")[2]
    keys = {word.split("=")[0] for word in given if "=" in word}
    keys |= set(re.findall(r"(\w+)=", text))  # those of its comments, too
    known = set(NetworkConfig.model_fields)
    assert keys - known == set()
    assert {"grain_worker_count", "network_train_files", "network_train_tokens"} <= keys


# --- project.sh -----------------------------------------------------------------------------------


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


# --- --dry-run, errors ----------------------------------------------------------------------------


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
        ("", ("queued_resources.sh",), "nothing is not a command: create, status"),
        ("", ("queued_resources.sh", "up"), "up is not a command: create, status"),
        ("", ("queued_resources.sh", "create", "x"), "create takes no x: see --help"),
        ("", ("queued_resources.sh", "logs", "x"), "x is not a worker: give its number, or all"),
        ("", ("queued_resources.sh", "train", "5"), "5 is not key=value: see docs/training.md"),
        ("", ("xpk.sh", "up"), "up is not a command: build, cluster"),
        ("", ("project.sh", "up"), "up is not an argument of "),
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
    assert line.startswith("error: there is no file /no/such: set SETTINGS to your file")


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
