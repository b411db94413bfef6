"""Conversions whose steps are repeated, and that run on other engines and GCS."""

import json
from pathlib import Path

import pytest

from beam_pipeline.convert import job
from beam_pipeline.convert.__main__ import main
from beam_pipeline.convert.options import MANIFEST, SUCCESS
from beam_pipeline.jobs import frame
from tests.support.conversions import flags_of, records_of, small_units, write_sources
from tests.support.engines import Flink, Gcs, stored_objects
from tests.support.repository import files_below

__all__ = ["small_units"]
pytestmark = pytest.mark.usefixtures("small_units")


@pytest.fixture(scope="module")
def source(folder: Path) -> Path:
    write_sources(folder / "in")
    return folder / "in"


@pytest.fixture
def expected(source: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """The output of an undisturbed run; all runs have the same start time."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1790000000")
    output = source.parent / "out"
    if not (output / SUCCESS).exists():
        assert main([*flags_of(source, output), "--direct_num_workers=1"]) == 0
        assert len(records_of(output)) == 1600
    return files_below(output)


def test_repeated_steps_change_nothing(
    source: Path, expected: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def repeat(owner: object, name: str) -> None:
        original = getattr(owner, name)

        def twice(*args):
            original(*args)
            return original(*args)

        monkeypatch.setattr(owner, name, twice)

    for owner, name in ((job, "stage"), (job, "plan"), (job, "convert_shard"), (frame, "commit")):
        repeat(owner, name)
    assert main([*flags_of(source, tmp_path / "out"), "--direct_num_workers=1"]) == 0
    assert files_below(tmp_path / "out") == expected


def test_prism_writes_the_same_bytes(
    source: Path, expected: dict[str, bytes], tmp_path: Path, prism: str
) -> None:
    flags = [*flags_of(source, tmp_path / "out"), "--runner=PrismRunner"]
    assert main([*flags, f"--prism_location={prism}", "--environment_type=LOOPBACK"]) == 0
    assert files_below(tmp_path / "out") == expected


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_flink_writes_the_same_bytes(
    source: Path, expected: dict[str, bytes], tmp_path: Path, flink: Flink
) -> None:
    assert main([*flags_of(source, tmp_path / "out"), *flink.flags()]) == 0
    assert files_below(tmp_path / "out") == expected


def test_gcs_input_and_output(source: Path, expected: dict[str, bytes], gcs: Gcs) -> None:
    bucket = gcs.make_bucket()
    gcs.upload(source, f"{bucket}/in")
    flags = flags_of(f"{bucket}/in/*", f"{bucket}/out", "--direct_num_workers=1")
    assert main(flags) == 0
    written = stored_objects(f"{bucket}/out")
    assert set(written) == set(expected)
    differing = {MANIFEST, SUCCESS}  # paths and versions
    assert {name: written[name] for name in set(written) - differing} == {
        name: expected[name] for name in set(expected) - differing
    }
    found, known = (json.loads(files[MANIFEST]) for files in (written, expected))
    assert (found["counts"], found["shards"]) == (known["counts"], known["shards"])
