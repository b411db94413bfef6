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

from beam_pipeline.documents.fields import Fields, training_fields
from beam_pipeline.documents.files import InputFile, match_documents, unread_warning
from beam_pipeline.errors import UsageError
from beam_pipeline.jobs.frame import Commit
from beam_pipeline.jobs.output_folder import JobRun
from beam_pipeline.overlap.evaluation import EvaluationFile, match_evaluation
from beam_pipeline.overlap.job import gathering
from beam_pipeline.overlap.job.config import DeconConfig
from beam_pipeline.overlap.job.manifest import summary_at_launch
from beam_pipeline.overlap.job.preparing import Prepared, build_index_shard, read_evaluation_sets
from beam_pipeline.overlap.job.scanning import Scan, count_groups, number_rows, plan_work_units
from beam_pipeline.overlap.results.boilerplate import check_ngrams
from beam_pipeline.overlap.results.details import DetailsOptions
from beam_pipeline.overlap.results.outputs import OutputOptions, group_of
from beam_pipeline.storage.files import check_regular
from beam_pipeline.storage.matching import FileVersion, match


class Inputs(NamedTuple):
    """The files that a run reads."""

    training: list[InputFile]
    evaluation: list[EvaluationFile]
    dropped: list[FileVersion]  # from --drop_ngrams
    warnings: tuple[str, ...] = ()

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
        check_regular(file.path for file in found)
        for file in found:
            check_ngrams(file)
        dropped += found
    is_each = config.eval_fields == "each"
    unread: dict[str, list[str]] = {"--input_path": [], "--decontaminate_source": []}
    of_sets = unread["--decontaminate_source"]
    evaluation = match_evaluation(
        config.sources, config.eval_text_fields, is_each, config.is_lm_eval, of_sets
    )
    training = match_documents(config.input_paths, unread=unread["--input_path"])
    warnings = [text for item in unread.items() for text in unread_warning(*item)]
    return Inputs(training, evaluation, dropped, tuple(warnings))


def build(pipeline: beam.Pipeline, config: DeconConfig, inputs: Inputs, run: JobRun) -> Commit:
    """Adds the job to a pipeline; returns its last step."""
    num_eval_files = len({each.file for each in inputs.evaluation})
    num_files = len(inputs.training)
    summary = summary_at_launch(config, num_eval_files, num_files, inputs.warnings)
    output_options = _output_options(config)
    details = output_options.details
    prepared: Any = AsSingleton(
        pipeline
        | "Evaluation files" >> beam.Create([inputs.evaluation])
        | "Read evaluation sets" >> beam.Map(read_evaluation_sets, run, config, summary)
    )
    fields = training_fields(config.text_field, config.id_field)
    scanned: Any = _scan(pipeline, inputs.training, fields, run, config, prepared)
    totals: Any = AsSingleton(
        scanned
        | "Count" >> beam.MapTuple(lambda _, unit: gathering.count_scanned(unit))
        | "Add up" >> beam.CombineGlobally(gathering.add_scanned).without_defaults()
        | "Check the scan"
        >> beam.Map(gathering.check_scan, run, summary, fields.text, inputs.training[0], prepared)
    )
    units = _numbered(scanned)
    keep: dict[str, Any] = {}
    boilerplate = None
    if config.has_boilerplate:
        dropped: Any = AsSingleton(
            pipeline
            | "Files of n-grams" >> beam.Create([inputs.dropped])
            | "Read dropped n-grams"
            >> beam.Map(gathering.find_dropped, run, prepared, config, totals)
        )
        found, path = _find_boilerplate(units, run, prepared, dropped, config, totals)
        keep["boilerplate_path"], boilerplate = AsSingleton(path), AsList(found)
    # Counts are summed as they arrive, after the shuffle. A CombinePerKey would first sum those of
    # a bundle, but Beam then holds the sums of all buckets until the bundle ends.
    counts, sizes = units | "Count n-grams" >> beam.FlatMap(
        gathering.count_ngrams, prepared, details, **keep
    ).with_output_types(tuple[int, Any]).with_outputs(gathering.SIZES, main="counts")
    quotas: Any = AsDict(
        pipeline
        | "Begin quotas" >> beam.Impulse()
        | "Set quotas" >> beam.FlatMap(gathering.set_quotas, run.output, details, AsList(sizes))
    )
    buckets: Any = (
        counts
        | "Group by evaluation rows" >> beam.GroupByKey()
        | "Write evaluation rows"
        >> beam.Map(gathering.write_evaluation_rows, run, prepared, details, **keep)
    )
    expanded: Any = units | "Expand" >> beam.Map(
        gathering.expand, run, prepared, details, quotas, config.rules_of_preset, **keep
    )
    groups: Any = (
        expanded
        | "Group of each"
        >> beam.Map(
            lambda unit: (group_of(unit.scanned.order[0], num_files), unit)
        ).with_output_types(tuple[int, Any])
        | "Group training files" >> beam.GroupByKey()
        | "Join training files" >> beam.Map(gathering.join_group, run)
    )
    written = map(AsList, (sizes, expanded, groups, buckets))
    write = partial(gathering.write_results, run, summary, output_options)
    sides = prepared, totals, *written, boilerplate, keep.get("boilerplate_path")
    return Commit("Finish", write, sides, tidy=partial(gathering.tidy_up, run))


def _output_options(config: DeconConfig) -> OutputOptions:
    caps = config.max_details_per_pair, config.max_details  # negative: unlimited
    per_pair, in_all = (None if cap < 0 else cap for cap in caps)
    return OutputOptions(
        config.lengths,
        DetailsOptions(config.details, per_pair, in_all, config.max_details_gb),
        config.all_rules,
        config.eval_text_fields if config.eval_fields == "each" else (),
        config.min_tokens,
        config.degenerate == "skip",
    )


def _scan(
    pipeline: beam.Pipeline,
    files: list[InputFile],
    fields: Fields,
    run: JobRun,
    config: DeconConfig,
    prepared: Any,
) -> Any:
    """Returns (path, ScannedUnit) of all work units."""
    index_paths = (
        prepared.pvalue
        | "Index shards"
        >> beam.FlatMap(
            lambda side: ((number, None) for number in range(side.num_index_shards))
        ).with_output_types(tuple[int, Any])
        | "Spread index shards" >> beam.GroupByKey()
        | "Build the index"
        >> beam.Map(lambda keyed, side: build_index_shard(keyed[0], run, config, side), prepared)
    )
    num_bytes = sum(file.num_bytes for file in files)

    def plan(keyed: tuple[int, Iterable[InputFile]], prepared: Prepared) -> Iterator[Any]:
        num_groups = count_groups(num_bytes, prepared.num_index_shards, prepared.index_bytes)
        for file in keyed[1]:
            yield from plan_work_units(keyed[0], file, num_groups)

    scan = Scan(run, fields, config.tokenizer)
    return (
        pipeline
        | "Training files" >> beam.Create(list(enumerate(files)), reshuffle=False)
        | "Spread files" >> beam.GroupByKey()
        | "Plan work units" >> beam.FlatMap(plan, prepared).with_output_types(tuple[str, Any])
        | "Spread work units" >> beam.GroupByKey()
        | "Scan"
        >> beam.ParDo(scan, prepared, AsList(index_paths)).with_output_types(tuple[str, Any])
    )


def _numbered(scanned: Any) -> Any:
    """Returns all ScannedUnits with their row offsets."""
    return (
        scanned
        | "Group by training file" >> beam.GroupByKey()
        | "Number rows"
        >> beam.FlatMapTuple(
            lambda _, units: ((unit.name, unit) for unit in number_rows(units))
        ).with_output_types(tuple[str, Any])
        | "Spread numbered work units" >> beam.GroupByKey()
        | "Of each name" >> beam.FlatMapTuple(lambda _, units: units)
    )


def _find_boilerplate(
    units: Any,
    run: JobRun,
    prepared: Any,
    dropped: Any,
    config: DeconConfig,
    totals: Any,
) -> tuple[Any, Any]:
    """Returns the BucketBoilerplate of each bucket, and the path of the file of all keys."""
    listed = run, prepared, dropped, config, totals
    found: Any = (
        units
        | "Count documents"
        >> beam.FlatMap(gathering.count_documents).with_output_types(tuple[int, bytes])
        | "Group by n-gram" >> beam.GroupByKey()
        | "Find boilerplate" >> beam.Map(gathering.list_boilerplate, *listed)
    )
    path = (
        units.pipeline
        | "Begin to gather" >> beam.Impulse()
        | "Gather boilerplate"
        >> beam.Map(gathering.gather_boilerplate, run, dropped, AsList(found))
    )
    return found, path
