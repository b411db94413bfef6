"""The pipeline from evaluation sets and training documents to all overlaps.

The evaluation side is indexed; the training side streams past it and stays in place. Only
descriptions of work units and counts of the evaluation side's n-grams are shuffled. Elements with
unique keys are spread over workers by GroupByKey, in a third of the steps of a Reshuffle.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import AsDict, AsList, AsSingleton

from beam_pipeline.documents.files import InputFile, match_documents
from beam_pipeline.errors import UsageError
from beam_pipeline.jobs.frame import Commit, start_time
from beam_pipeline.jobs.output_folder import JobRun
from beam_pipeline.overlap.evaluation import EvaluationFile, match_evaluation
from beam_pipeline.overlap.job import boilerplate_steps, gathering
from beam_pipeline.overlap.job.config import DeconConfig
from beam_pipeline.overlap.job.preparing import (
    Job,
    Prepared,
    build_index_shard,
    read_evaluation_sets,
)
from beam_pipeline.overlap.job.scanning import Scan, count_groups, number_rows, plan_work_units
from beam_pipeline.overlap.results.boilerplate import check_ngrams
from beam_pipeline.overlap.results.outputs import group_of
from beam_pipeline.storage.matching import FileVersion, match


class Inputs(NamedTuple):
    """The files that a run reads."""

    training: list[InputFile]
    evaluation: list[EvaluationFile]
    dropped: list[FileVersion]  # from --drop_ngrams

    @property
    def paths(self) -> list[str]:
        """The paths of all files."""
        of_sets = (each.file for each in self.evaluation)
        return [file.path for file in (*self.training, *of_sets, *self.dropped)]


def find_inputs(config: DeconConfig) -> Inputs:
    """Returns the files of a run, after checking the files of n-grams."""
    dropped = []
    for path in config.drop_paths:
        if not (found := match(path)):
            raise UsageError(f"--drop_ngrams={path} is no file: check the path")
        for file in found:
            check_ngrams(file)
        dropped += found
    is_each = config.eval_fields == "each"
    evaluation = match_evaluation(config.sources, config.eval_text_fields, is_each)
    return Inputs(match_documents(config.input_paths), evaluation, dropped)


def build(
    pipeline: beam.Pipeline, config: DeconConfig, inputs: Inputs, run: JobRun, command: str = ""
) -> Commit:
    """Adds the job to a pipeline; returns its last step. `command` is "" for a run from Python."""
    num_eval_files = len({each.file for each in inputs.evaluation})
    num_files = num_eval_files, len(inputs.training)
    job = Job(config, run, *num_files, start_time(), command)
    prepared: Any = AsSingleton(
        pipeline
        | "Evaluation files" >> beam.Create([inputs.evaluation])
        | "Read evaluation sets" >> beam.Map(read_evaluation_sets, job)
    )
    scanned: Any = _scan(pipeline, job, inputs.training, prepared)
    totals: Any = AsSingleton(
        scanned
        | "Count" >> beam.MapTuple(lambda _, unit: gathering.count_scanned(unit))
        | "Add up" >> beam.CombineGlobally(gathering.add_scanned).without_defaults()
        | "Check the scan" >> beam.Map(gathering.check_scan, job, prepared)
    )
    units: Any = (
        scanned
        | "Group by training file" >> beam.GroupByKey()
        | "Number rows"
        >> beam.FlatMapTuple(
            lambda _, units: ((unit.name, unit) for unit in number_rows(units))
        ).with_output_types(tuple[str, Any])
        | "Spread numbered work units" >> beam.GroupByKey()
        | "Of each name" >> beam.FlatMapTuple(lambda _, units: units)
    )
    keep: dict[str, Any] = {}
    boilerplate = None
    if config.has_boilerplate:
        found, path = _find_boilerplate(pipeline, job, units, prepared, inputs.dropped, totals)
        keep["boilerplate_path"], boilerplate = AsSingleton(path), AsList(found)
    # Counts are summed as they arrive, after the shuffle. A CombinePerKey would first sum those of
    # a bundle, but Beam then holds the sums of all buckets until the bundle ends.
    counts, sizes = units | "Count n-grams" >> beam.FlatMap(
        gathering.count_ngrams, job, prepared, **keep
    ).with_output_types(tuple[int, Any]).with_outputs(gathering.SIZES, main="counts")
    quotas: Any = AsDict(
        pipeline
        | "Begin quotas" >> beam.Impulse()
        | "Set quotas" >> beam.FlatMap(gathering.set_quotas, job, AsList(sizes))
    )
    buckets: Any = (
        counts
        | "Group by evaluation rows" >> beam.GroupByKey()
        | "Write evaluation rows"
        >> beam.Map(gathering.write_evaluation_rows, job, prepared, **keep)
    )
    expanded: Any = units | "Expand" >> beam.Map(gathering.expand, job, prepared, quotas, **keep)
    groups: Any = (
        expanded
        | "Group of each"
        >> beam.Map(
            lambda unit: (group_of(unit.scanned.order[0], job.num_train_files), unit)
        ).with_output_types(tuple[int, Any])
        | "Group training files" >> beam.GroupByKey()
        | "Join training files" >> beam.Map(gathering.join_group, job)
    )
    written = map(AsList, (sizes, expanded, groups, buckets))
    write, tidy = partial(gathering.write_results, job), partial(gathering.tidy_up, job)
    return Commit("Finish", write, (prepared, totals, *written, boilerplate), tidy=tidy)


def _scan(pipeline: beam.Pipeline, job: Job, files: list[InputFile], prepared: Any) -> Any:
    """Returns (path, ScannedUnit) of all work units."""
    index_paths = (
        prepared.pvalue
        | "Index shards"
        >> beam.FlatMap(
            lambda side: ((number, None) for number in range(side.num_index_shards))
        ).with_output_types(tuple[int, Any])
        | "Spread index shards" >> beam.GroupByKey()
        | "Build the index"
        >> beam.Map(lambda keyed, side: build_index_shard(keyed[0], job, side), prepared)
    )
    num_bytes = sum(file.num_bytes for file in files)

    def plan(keyed: tuple[int, Iterable[InputFile]], prepared: Prepared) -> Iterator[Any]:
        num_groups = count_groups(num_bytes, prepared.num_index_shards, prepared.index_bytes)
        for file in keyed[1]:
            yield from plan_work_units(keyed[0], file, job.config.text_field, num_groups)

    return (
        pipeline
        | "Training files" >> beam.Create(list(enumerate(files)), reshuffle=False)
        | "Spread files" >> beam.GroupByKey()
        | "Plan work units" >> beam.FlatMap(plan, prepared).with_output_types(tuple[str, Any])
        | "Spread work units" >> beam.GroupByKey()
        | "Scan"
        >> beam.ParDo(Scan(job), prepared, AsList(index_paths)).with_output_types(tuple[str, Any])
    )


def _find_boilerplate(
    pipeline: beam.Pipeline,
    job: Job,
    units: Any,
    prepared: Any,
    files: list[FileVersion],
    totals: Any,
) -> tuple[Any, Any]:
    """Returns the BucketBoilerplate of each bucket, and the path of the file of all keys."""
    most = job.config.max_document_frequency
    dropped: Any = AsSingleton(
        pipeline
        | "Files of n-grams" >> beam.Create([files])
        | "Read dropped n-grams" >> beam.Map(boilerplate_steps.find_dropped, job, prepared, totals)
    )
    found: Any = (
        units
        | "Count documents"
        >> beam.FlatMap(boilerplate_steps.count_documents).with_output_types(tuple[int, bytes])
        | "Group by n-gram" >> beam.GroupByKey()
        | "Find boilerplate"
        >> beam.Map(boilerplate_steps.list_boilerplate, job, prepared, dropped, most)
    )
    path = (
        pipeline
        | "Begin to gather" >> beam.Impulse()
        | "Gather boilerplate"
        >> beam.Map(boilerplate_steps.gather_boilerplate, job, dropped, AsList(found))
    )
    return found, path
