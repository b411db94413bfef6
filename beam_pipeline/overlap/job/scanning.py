"""The scan as a Beam step: units of training documents in, their parts on storage.

Neither a text nor an n-gram of the training data leaves the worker but those that match, and
these go to storage, not through a shuffle. The index is mapped from one local file, whose pages
all processes of a machine share.
"""

from collections.abc import Iterable, Iterator, Sequence

import apache_beam as beam

from beam_pipeline.jobs.monitoring import count_dead_letters, counter, logged
from beam_pipeline.overlap.documents.batch import DocumentBatch
from beam_pipeline.overlap.documents.reading import read_unit
from beam_pipeline.overlap.job.preparing import Job, Prepared
from beam_pipeline.overlap.job.progress import Heartbeat
from beam_pipeline.overlap.job.units import ScannedUnit, Work
from beam_pipeline.overlap.ngrams.index import open_index
from beam_pipeline.overlap.ngrams.matching import Match, Matcher
from beam_pipeline.overlap.results.match_files import PartSummary, part_summary, write_part
from beam_pipeline.storage.files import exists
from beam_pipeline.storage.local_copy import on_this_machine


class Scan(beam.DoFn):
    """(key, [Work]) → (path, ScannedUnit); what has a part already is not read again."""

    def __init__(self, job: Job):
        self._job = job
        self._matchers: dict[str, Matcher] = {}
        self._documents = counter("overlap_documents")
        self._text_bytes = counter("overlap_text_bytes")
        self._matches = counter("overlap_matches")

    def process(
        self, keyed: tuple[str, Iterable[Work]], prepared: Prepared, index_paths: Sequence[str]
    ) -> Iterator[tuple[str, ScannedUnit]]:
        # Pass after pass, so that one index is in memory at a time.
        for work in sorted(keyed[1], key=lambda work: (work.part, *work[:2])):
            with logged("Scan", path=work.unit.path, start=work.unit.start, part=work.part):
                summary = self._scan(work, prepared)
            yield work.unit.path, ScannedUnit(work, summary)

    def _scan(self, work: Work, prepared: Prepared) -> PartSummary:
        path = work.part_path(prepared.folder)
        if exists(path):
            return part_summary(path)
        heartbeat = Heartbeat(self._job.output_path, self._job.temp_folder, work)
        matcher = self._matcher(prepared, work.part)
        summary = write_part(path, self._job.temp_folder, self._scanned(work, matcher, heartbeat))
        heartbeat.finish()
        self._matches.inc(summary.num_matches)
        if work.part == 0:
            self._documents.inc(summary.num_texts)
            for reason, count in summary.letters.items():
                count_dead_letters(reason, count)
        return summary

    def _scanned(
        self, work: Work, matcher: Matcher, heartbeat: Heartbeat
    ) -> Iterator[tuple[DocumentBatch, Iterator[Match]]]:
        for batch in read_unit(work.unit, self._job.text_field, self._job.id_field):
            matches = matcher.matches(batch.utf8, batch.bounds)
            yield batch, (heartbeat.found(match) for match in matches)
            self._text_bytes.inc(len(batch.utf8))
            heartbeat.count(batch.num_rows, len(batch.utf8))

    def _matcher(self, prepared: Prepared, part: int) -> Matcher:
        path = prepared.index_path(part)
        if path not in self._matchers:
            self._matchers.clear()
            index = open_index(on_this_machine(path), prepared.fingerprint)
            self._matchers[path] = Matcher(index, prepared.open_rows(), self._job.tokenizer)
        return self._matchers[path]
