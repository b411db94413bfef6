"""The job on `gs://`: the same bytes, through faults, kills and two runs at once."""

import itertools
import json
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import grain
import pyarrow.parquet as pq
import pytest
from array_record.python.array_record_module import ArrayRecordReader
from google.api_core.exceptions import PreconditionFailed
from google.cloud.storage import Blob

from beam_pipeline.dataset.rows import open_dataset
from beam_pipeline.errors import ProbelineError, UsageError
from beam_pipeline.jobs import output_folder, output_lease
from beam_pipeline.jobs.output_folder import TEMP_FOLDER
from beam_pipeline.main import main
from beam_pipeline.probe_rows.switch import DATASET_FILES
from beam_pipeline.storage import gcs
from beam_pipeline.verify import __main__ as verify
from tests.support.engines import Gcs, stored_objects
from tests.support.faulty_gcs import faulty
from tests.support.helpers import measurements_table, quick_and_slow
from tests.support.job_runs import FLAGS, files_of, make_dataset, write_input
from tests.support.kills import kill_script
from tests.support.warm_python import warm_python
from training.rows.row_source import ProbeRowDataSource

taken = partial(output_folder.taken, files=DATASET_FILES)

_LETTERS = "dead_letter/dead_letter_00000-of-00001.parquet"
# With paths of the input, or their hashes.
_WITH_PATHS = {_LETTERS, "README.md", "croissant.json", "manifest.json", "_SUCCESS"}


@pytest.fixture(scope="module")
def source(folder: Path) -> Path:
    """A folder of three files, one of them with bad rows."""
    table = measurements_table(2500, seed=1, num_probes=12)
    write_input(folder / "in", *(table.slice(at, 900) for at in (0, 900, 1800)))
    bad = table.slice(0, 3).to_pylist()
    for row, address in zip(bad, ("", "nowhere", "fe80::1%eth0"), strict=True):
        row["src_addr"] = address
    pq.write_table(type(table).from_pylist(bad, table.schema), folder / "in" / "part-3.parquet")
    return folder / "in"


@pytest.fixture(scope="module")
def expected(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """All that a run on local files writes, by its name in the dataset."""
    output = make_dataset(source / "*.parquet", tmp_path_factory.mktemp("local") / "out")
    names = ("README.md", "croissant.json", "manifest.json", "_SUCCESS", _LETTERS)
    return files_of(output) | {name: (output / name).read_bytes() for name in names}


@pytest.fixture
def bucket(gcs: Gcs, source: Path) -> str:
    """A bucket that holds the input below in/."""
    bucket = gcs.make_bucket()
    gcs.upload(source, f"{bucket}/in")
    return bucket


def make(bucket: str, *flags: str) -> int:
    return main([f"--input={bucket}/in/*.parquet", f"--output={bucket}/out", *FLAGS, *flags])


def same_but_for_paths(found: dict[str, bytes], expected: dict[str, bytes]) -> bool:
    """Dead letters and the data card name the input, and it lies elsewhere.

    The manifest has the checksums of the dead letters, and `_SUCCESS` its own.
    """
    manifests = [json.loads(files["manifest.json"]) for files in (found, expected)]
    for values in manifests:
        del values["dead_letter_files"], values["generations"]
    return (
        {name: data for name, data in found.items() if name not in _WITH_PATHS}
        == {name: data for name, data in expected.items() if name not in _WITH_PATHS}
        and found.keys() >= _WITH_PATHS
        and manifests[0] == manifests[1]
    )


# --- the whole job ------------------------------------------------------------------------------


def test_the_bytes_are_those_of_a_local_run(
    bucket: str, expected: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    """ArrayRecord, Grain and the loader read it in place; it is replaced only if that is asked."""
    assert main([f"--input={bucket}/in", f"--output={bucket}/out/", *FLAGS]) == 0
    before = stored_objects(f"{bucket}/out")
    assert same_but_for_paths(before, expected)
    assert verify.main([f"{bucket}/out"]) == 0

    shards = sorted(name for name in expected if name.endswith(".arrayrecord"))
    paths = [f"{bucket}/out/{name}" for name in shards]
    by_grain = grain.sources.ArrayRecordDataSource(paths)
    records = [record for path in paths for record in ArrayRecordReader(path).read_all()]
    assert [by_grain[at] for at in range(len(records))] == records
    splits = [ProbeRowDataSource(f"{bucket}/out/{split}") for split in ("test", "train")]
    rows = [source[at] for source in splits for at in range(len(source))]
    assert sum(row["n_measurements"] for row in rows) == 2500

    assert make(bucket) == 2
    assert "holds a finished dataset" in capsys.readouterr().err
    assert stored_objects(f"{bucket}/out") == before
    gcs.write_object(f"{bucket}/out/train/notes.txt", b"not ours", 0)
    assert make(bucket, "--overwrite", "--probes_per_shard=1000") == 0
    after = stored_objects(f"{bucket}/out")
    assert after["train/notes.txt"] == b"not ours"
    assert [name for name in after if "shard_0" in name] == [
        f"{split}/{split}_shard_00000-of-00001.arrayrecord" for split in ("test", "train")
    ]


# --- faults -------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", quick_and_slow((3, 4, 7), (7,)))
def test_lost_and_refused_requests_change_nothing(
    bucket: str, gcs: Gcs, expected: dict[str, bytes], monkeypatch, every: int
) -> None:
    with faulty(gcs.endpoint, every) as proxy, monkeypatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", proxy.endpoint)
        patch.setattr("beam_pipeline.storage.gcs._FIRST_DELAY_S", 0.01)
        assert make(bucket, "--inline_bytes=0") == 0
    assert len(proxy.faults) == 5
    assert same_but_for_paths(stored_objects(f"{bucket}/out"), expected)


# --- kills --------------------------------------------------------------------------------------

KILL_POINTS = {
    "between two uploads": ("storage.gcs", "module", "upload", 2),
    "between copying and removing": ("storage.gcs", "module", "delete_objects", 2),
    "renaming a shard": ("storage.many_files", "module", "_move", 3),
    "before _SUCCESS": ("dataset.manifest", "module", "success_stamp", 1),
    "before the marker goes": ("jobs.output_lease", "module.Marker", "release", 1),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "phase", quick_and_slow(KILL_POINTS, ("renaming a shard", "before _SUCCESS"))
)
def test_a_kill_leaves_nothing_that_looks_finished_and_the_next_run_is_whole(
    bucket: str, expected: dict[str, bytes], monkeypatch, phase: str
) -> None:
    script = kill_script(*KILL_POINTS[phase])
    flags = [f"--input={bucket}/in/*.parquet", f"--output={bucket}/out", *FLAGS]
    killed = subprocess.run([*warm_python(), "-c", script, *flags], capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    if phase == "before the marker goes":
        open_dataset(f"{bucket}/out")
        flags.append("--overwrite")
    else:
        with pytest.raises(ProbelineError, match="is not a finished dataset"):
            open_dataset(f"{bucket}/out")
    left = stored_objects(f"{bucket}/out")
    for name, data in expected.items():  # what has its name is whole
        if name in left and name not in _WITH_PATHS:
            assert left[name] == data
    assert main(flags) == 2  # it may be alive
    monkeypatch.setattr(output_lease, "LEASE_S", 0.0)
    assert main(flags) == 0
    assert same_but_for_paths(stored_objects(f"{bucket}/out"), expected)


# --- the marker ---------------------------------------------------------------------------------


def test_a_marker_is_renewed_while_its_run_lives(bucket: str, monkeypatch) -> None:
    monkeypatch.setattr(output_lease, "RENEW_S", 0.05)
    monkeypatch.setattr(output_lease, "LEASE_S", 2.0)
    with taken(f"{bucket}/out", overwrite=False) as run:
        assert run.marker is not None
        first = gcs.read_object(run.marker.path)
        time.sleep(2.2)
        later = gcs.read_object(run.marker.path)
        assert first is not None and later is not None
        assert later.generation != first.generation
        before = stored_objects(f"{bucket}/out").keys()
        with pytest.raises(UsageError, match=r"is being written by process \d+ on .*: wait for it"):
            with taken(f"{bucket}/out", overwrite=True):
                pytest.fail("the folder was taken from a live run")
        assert stored_objects(f"{bucket}/out").keys() == before
    assert stored_objects(f"{bucket}/out") == {}


def test_a_marker_that_is_renewed_while_it_is_read_is_read_again(bucket: str, monkeypatch) -> None:
    path = f"{bucket}/marker"
    generations = [gcs.write_object(path, b"old", 0)]
    download = Blob.download_as_bytes

    def as_gcs_does(self, **options) -> bytes:
        """The emulator gives another generation than the one asked for; GCS answers with 412."""
        if len(generations) == 1:
            generations.append(gcs.write_object(path, b"new", self.generation))
            raise PreconditionFailed("conditionNotMet")
        return download(self, **options)

    monkeypatch.setattr(Blob, "download_as_bytes", as_gcs_does)
    found = gcs.read_object(path)
    assert found is not None
    assert (found.data, found.generation) == (b"new", generations[1])


def test_only_one_of_two_takes_over_a_dead_run(bucket: str, monkeypatch) -> None:
    """Both have seen the same dead marker; the second writes when the first has."""
    path = f"{bucket}/out/{TEMP_FOLDER}/lock.json"
    gcs.write_object(path, b'{"run": "dead"}', 0)
    monkeypatch.setattr(output_lease, "LEASE_S", 0.0)
    write = gcs.write_object
    attempts = itertools.count()

    def overtaken(path: str, data: bytes, generation: int) -> int | None:
        if next(attempts) in (1, 3, 5):  # the others ask for a place that has no marker
            found = gcs.read_object(path)
            write(path, b'{"run": "faster"}', found.generation if found else 0)
        return write(path, data, generation)

    monkeypatch.setattr(gcs, "write_object", overtaken)
    with pytest.raises(UsageError, match="has just been taken by another run"):
        with taken(f"{bucket}/out", overwrite=False):
            pytest.fail("the folder was taken twice")
    assert json.loads(stored_objects(f"{bucket}/out")[f"{TEMP_FOLDER}/lock.json"]) == {
        "run": "faster"
    }


def test_a_shard_that_somebody_changed_is_not_committed(bucket: str, monkeypatch, capsys) -> None:
    from beam_pipeline.probe_rows import commit

    check = commit.check_shards

    def changed(output: str, splits) -> None:
        path = f"{output}/train/train_shard_00000-of-00004.arrayrecord"
        found = gcs.read_object(path)
        assert found is not None
        gcs.write_object(path, found.data[:-1] + b"x", found.generation)
        check(output, splits)

    monkeypatch.setattr(commit, "check_shards", changed)
    assert make(bucket) == 1
    assert "train_shard_00000-of-00004.arrayrecord is not what was written" in (
        capsys.readouterr().err
    )
    assert "_SUCCESS" not in stored_objects(f"{bucket}/out")
