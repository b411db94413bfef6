"""The chain from evaluation sets and training documents to every overlap, from top to bottom.

The evaluation side is indexed, the training side streams past it and stays where it is: what goes
through a shuffle are descriptions of units, and counts of the evaluation side's n-grams.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import AsList, AsSingleton

from beam_pipeline.jobs.output_folder import JobRun
from beam_pipeline.overlap.documents.evaluation import EvaluationFile, match_evaluation
from beam_pipeline.overlap.documents.reading import DocumentFile, match_documents
from beam_pipeline.overlap.job.config import DeconConfig
from beam_pipeline.overlap.job.gathering import (
    CheckScan,
    CountNgrams,
    Expand,
    FindBoilerplate,
    Finish,
    GatherBoilerplate,
    SizeDetails,
    Summarize,
    WriteBucket,
)
from beam_pipeline.overlap.job.preparing import BuildIndex, Job, Prepared, ReadEvaluationSets
from beam_pipeline.overlap.job.scanning import Scan
from beam_pipeline.overlap.job.units import (
    NumberedUnit,
    ScannedUnit,
    Work,
    count_buckets,
    number_units,
    works_of,
)


class Inputs(NamedTuple):
    """The files that a run reads."""

    training: list[DocumentFile]
    evaluation: list[EvaluationFile]


def find_inputs(config: DeconConfig) -> Inputs:
    """Looks for the files of a run.

    Raises:
      UsageError: a pattern matches no file of documents.
    """
    return Inputs(match_documents(config.input_paths), match_evaluation(config.sources))


def build(pipeline: beam.Pipeline, config: DeconConfig, inputs: Inputs, run: JobRun) -> None:
    """Adds the whole job to a pipeline.

    Args:
      run: which holds the output and has a folder of its own beside it.
    """
    job = Job.of(config, run.folder, len(inputs.evaluation), len(inputs.training))
    prepared: Any = AsSingleton(
        pipeline
        | "Evaluation files" >> beam.Create([inputs.evaluation])
        | "Read evaluation sets" >> beam.ParDo(ReadEvaluationSets(job))
    )
    scanned: Any = _scan(pipeline, job, inputs.training, prepared)
    totals: Any = AsSingleton(
        scanned
        | "Of each part" >> beam.Values()
        | "Add up" >> beam.CombineGlobally(Summarize())
        | "Check the scan" >> beam.ParDo(CheckScan(job), prepared)
    )
    units: Any = (
        scanned
        | "Group by training file" >> beam.GroupByKey()
        | "Number rows" >> beam.FlatMap(_number, prepared)
        | "Spread numbered units" >> beam.Reshuffle()
    )
    boilerplate = _boilerplate(pipeline, job, units, prepared) if job.max_document_frequency else []
    paths = [AsSingleton(path) for path in boilerplate[:1]]
    buckets: Any = _by_bucket("", units, job, *paths) | "Write evaluation rows" >> beam.ParDo(
        WriteBucket(job), prepared
    )
    sizes = []
    if job.has_caps:
        # Side inputs are by place: where nothing is boilerplate, None says so.
        paths = paths or [None]
        sizes = [AsList(units | "Size details" >> beam.ParDo(SizeDetails(job), prepared, *paths))]
    expanded: Any = units | "Expand" >> beam.ParDo(Expand(job), prepared, *paths, *sizes)
    _ = (
        pipeline
        | "Begin the end" >> beam.Impulse()
        | "Finish"
        >> beam.ParDo(
            Finish(job, run.marker),
            prepared,
            totals,
            AsList(expanded),
            AsList(buckets),
            *[AsList(found) for found in boilerplate[1:]],
        )
    )


def _scan(pipeline: beam.Pipeline, job: Job, files: list[DocumentFile], prepared: Any) -> Any:
    """Returns (path, ScannedUnit) of all units and passes."""
    index_paths = (
        prepared.pvalue
        | "Passes" >> beam.FlatMap(lambda side: range(side.num_parts)).with_output_types(int)
        | "Spread passes" >> beam.Reshuffle()
        | "Build the index" >> beam.ParDo(BuildIndex(job), prepared)
    )
    num_bytes = sum(file.num_bytes for file in files)
    return (
        pipeline
        | "Training files" >> beam.Create(list(enumerate(files)), reshuffle=False)
        | "Spread files" >> beam.Reshuffle()
        | "Plan units"
        >> beam.FlatMap(_plan, prepared, job.text_field, num_bytes).with_output_types(
            tuple[str, Any]
        )
        | "Spread units" >> beam.GroupByKey()
        | "Scan"
        >> beam.ParDo(Scan(job), prepared, AsList(index_paths)).with_output_types(tuple[str, Any])
    )


def _plan(
    file: tuple[int, DocumentFile], prepared: Prepared, text_field: str, num_bytes: int
) -> Iterator[tuple[str, Work]]:
    buckets = count_buckets(num_bytes, prepared.num_parts)
    return works_of(file, text_field, prepared.num_parts, buckets)


def _number(keyed: tuple[str, Iterable[ScannedUnit]], prepared: Prepared) -> Iterator[NumberedUnit]:
    return number_units(keyed[1], prepared.folder, prepared.num_parts)


def _by_bucket(which: str, units: beam.PCollection, job: Job, *boilerplate_path: Any) -> Any:
    """Returns (bucket of evaluation rows, counts of all units)."""
    return (
        units
        | f"Count n-grams{which}" >> beam.ParDo(CountNgrams(job), *boilerplate_path)
        | f"Group by evaluation rows{which}" >> beam.GroupByKey()
    )


def _boilerplate(
    pipeline: beam.Pipeline, job: Job, units: beam.PCollection, prepared: Any
) -> list[Any]:
    """Returns the path of the file that lists boilerplate, and BucketBoilerplate of each bucket."""
    found: Any = _by_bucket(" of boilerplate", units, job) | "Find boilerplate" >> beam.ParDo(
        FindBoilerplate(job), prepared
    )
    path: Any = (
        pipeline
        | "Begin to gather" >> beam.Impulse()
        | "Gather boilerplate" >> beam.ParDo(GatherBoilerplate(job), AsList(found))
    )
    return [path, found]
