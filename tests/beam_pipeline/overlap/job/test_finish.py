"""The last steps on `gs://`: their requests, attempts at once, and a worker of a lost run."""

import contextlib
import io
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from beam_pipeline.documents.files import InputFile, WorkUnit
from beam_pipeline.jobs import frame, output_folder
from beam_pipeline.jobs.output_folder import JobRun
from beam_pipeline.overlap.evaluation import match_evaluation
from beam_pipeline.overlap.job import gathering
from beam_pipeline.overlap.job.config import DeconConfig, NGramConfig
from beam_pipeline.overlap.job.launch import output_files
from beam_pipeline.overlap.job.manifest import summary_at_launch
from beam_pipeline.overlap.job.preparing import Prepared, read_evaluation_sets
from beam_pipeline.overlap.results.counts import UnitSize
from beam_pipeline.overlap.results.expansion import MATCHES_SCHEMA, PAIRS, ExpandedUnit
from beam_pipeline.overlap.results.match_files import ScannedUnit, ScanSummary
from beam_pipeline.overlap.results.output_files import (
    GzipMember,
    arrow_writer,
    json_line,
    make_table,
)
from beam_pipeline.overlap.results.outputs import OutputOptions, group_of
from beam_pipeline.storage import gcs as gcs_storage
from beam_pipeline.storage.matching import FileVersion
from tests.support.engines import Gcs
from tests.support.faulty_gcs import FaultyGcs, faulty

taken = partial(output_folder.taken, overwrite=False, files=output_files(False))
_FILES = ("details.gz", "instances.gz", "matches.arrow", "hits")


class ExpandedRun(NamedTuple):
    """What workers have written of work units that all have one match."""

    run: JobRun
    summary: dict[str, Any]
    prepared: Prepared
    units: list[ExpandedUnit]

    @property
    def sizes(self) -> list[Any]:
        """The size of each work unit."""
        return [(unit.scanned, UnitSize(1)) for unit in self.units]

    def join_groups(self) -> list[Any]:
        """Does the step `Join training files` of each group."""
        groups: dict[int, list[ExpandedUnit]] = defaultdict(list)
        for unit in self.units:
            groups[group_of(unit.scanned.order[0], self.summary["num_train_files"])].append(unit)
        return [gathering.join_group(keyed, self.run) for keyed in groups.items()]

    def finish(self, groups: list[Any]) -> None:
        """Does the step `Finish`."""
        sides = self.prepared, {"dead_letters": {}}, self.sizes, self.units, groups, []
        options = OutputOptions((2,))
        write = partial(gathering.write_results, self.run, self.summary, options)
        tidy = partial(gathering.tidy_up, self.run)
        frame.commit(b"", self.run, frame.Commit("Finish", write, tidy=tidy), *sides)


@contextlib.contextmanager
def a_run(gcs: Gcs, folder: Path, num_units: int, num_files: int) -> Iterator[ExpandedRun]:
    (folder / "quiz.jsonl").write_text('{"text": "one two"}\n')
    sources, output = (f"quiz={folder}/quiz.jsonl",), f"{gcs.make_bucket()}/out"
    config = DeconConfig(
        input_path=output, decontaminate_source=sources, output_path=output, ngram=NGramConfig(2)
    )
    with taken(output) as run:
        summary = summary_at_launch(config, 1, num_files)
        given = match_evaluation(sources), run, config, summary
        prepared = read_evaluation_sets(*given)
        with ThreadPoolExecutor(gcs_storage.REQUESTS_AT_A_TIME) as pool:
            of_files = partial(_unit, run, num_files, num_units)
            units = list(pool.map(of_files, range(num_units)))
        yield ExpandedRun(run, summary, prepared, units)


def _unit(run: JobRun, num_files: int, num_units: int, at: int) -> ExpandedUnit:
    number = at * num_files // num_units
    unit = WorkUnit(InputFile(FileVersion(f"/train/{number}", 0, 0), "jsonl", number=number), at)
    scanned = ScannedUnit(unit, (), ScanSummary(1, 1, 0, 7, 1, {}))
    prefix, row = run.below(f"units/{scanned.name}"), {"unit": at}
    member, table = io.BytesIO(), io.BytesIO()
    with GzipMember(member) as stream:
        stream.write(json_line(row))
    places = [{"start": 0, "end": 3}]
    match = ("quiz", "/quiz", 0, "1", unit.path, at, None, 2, places, places)
    with arrow_writer(table, MATCHES_SCHEMA) as writer:
        writer.write_table(make_table([match], MATCHES_SCHEMA))
    contents = member.getvalue(), member.getvalue(), table.getvalue(), np.zeros(1, PAIRS).tobytes()
    for name, data in zip(_FILES, contents, strict=True):
        gcs_storage.write_object(f"{prefix}.{name}", data, 0)
    return ExpandedUnit(scanned, 1, 0, {name: f"{prefix}.{name}" for name in _FILES})


@contextlib.contextmanager
def counted(gcs: Gcs, monkeypatch: pytest.MonkeyPatch, delay_s: float) -> Iterator[FaultyGcs]:
    with faulty(gcs.endpoint, delay_s=delay_s) as proxy, monkeypatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", proxy.endpoint)
        yield proxy


def test_a_work_unit_adds_few_requests_to_the_end(
    gcs: Gcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each adds a 32nd of a request to join its files, and a 25th to delete them."""
    requests = []
    for num_units in (10, 110):
        with a_run(gcs, tmp_path, num_units, 4) as expanded:
            groups = expanded.join_groups()
            with counted(gcs, monkeypatch, 0) as proxy:
                expanded.finish(groups)
            requests.append(len(proxy.requests))
    assert requests[0] < 100
    assert requests[1] - requests[0] < 100 * 0.15


@pytest.mark.slow
@pytest.mark.parametrize(("num_files", "longest"), [(8, 100), (200, 120)])
def test_hundreds_of_units_wait_for_few_requests(
    gcs: Gcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_files: int, longest: int
) -> None:
    """Their 300 requests, one after another, would be 15 seconds at 50 ms."""
    with a_run(gcs, tmp_path, 200, num_files) as expanded:
        with counted(gcs, monkeypatch, 0.05) as joining:
            gathering.join_group((0, expanded.units[:100]), expanded.run)
        groups = expanded.join_groups()
        with counted(gcs, monkeypatch, 0.05) as finishing:
            expanded.finish(groups)
    assert joining.longest_chain() < 30
    assert finishing.longest_chain() < longest
