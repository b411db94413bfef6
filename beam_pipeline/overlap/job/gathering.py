"""The steps after the scan: match files become the files of the output.

files of --drop_ngrams, index shards → a file of KEYS, also of n-grams of many evaluation rows
ScannedUnit → SHARED_COUNTS by bucket of n-grams → BucketBoilerplate → a file of all KEYS
ScannedUnit → PackedCounts by bucket of evaluation rows → files of each bucket
            → UnitSize → space check → max details of each work unit
ScannedUnit → files of each work unit → joined files of a group of training files
all of these → the output, `.SUCCESS` last
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from apache_beam.pvalue import TaggedOutput

from beam_pipeline.dataset.dead_letters import DeadLetter, explain_letters
from beam_pipeline.documents.files import InputFile
from beam_pipeline.documents.reading import fields_of
from beam_pipeline.errors import ProbelineError, printable, shortened
from beam_pipeline.jobs.monitoring import counter, logged
from beam_pipeline.jobs.output_folder import JobRun
from beam_pipeline.overlap.job.config import DeconConfig, Preset
from beam_pipeline.overlap.job.manifest import read_summary
from beam_pipeline.overlap.job.preparing import Prepared, freeing_step, summarize
from beam_pipeline.overlap.ngrams.tokenizers import tokenizer_named
from beam_pipeline.overlap.report.contents import Report, write_contents
from beam_pipeline.overlap.results.boilerplate import (
    bare_rows,
    boilerplate_of,
    bucket_of,
    common_ngrams,
    find_boilerplate,
    find_ngrams,
    read_boilerplate,
    read_keys,
    read_ngrams,
    write_boilerplate_lines,
    write_keys,
)
from beam_pipeline.overlap.results.contaminated import write_eval_tokens
from beam_pipeline.overlap.results.counts import (
    SHARED_COUNTS,
    PackedCounts,
    UnitSize,
    add_counts,
    add_shared,
    add_sizes,
    count_shared,
    measure_unit,
    pack,
    pack_counts,
    unpack,
)
from beam_pipeline.overlap.results.details import COMPACT, NONE, DetailsOptions, DetailsSize, quotas
from beam_pipeline.overlap.results.expansion import PAIRS, ExpandedUnit, expand_unit
from beam_pipeline.overlap.results.layout import EVAL_TOKENS, REPORT, SUMMARY, WORK_FOLDER
from beam_pipeline.overlap.results.match_files import Keep, ScannedUnit, letters_path
from beam_pipeline.overlap.results.outputs import (
    FileGroup,
    OutputOptions,
    Results,
    hits_of,
    join_units,
    write_outputs,
)
from beam_pipeline.overlap.results.row_overlaps import BucketFiles, write_bucket, write_eval_texts
from beam_pipeline.overlap.results.rules import SHORT_TOKENS
from beam_pipeline.overlap.results.verdicts import RowVerdicts, left_out
from beam_pipeline.report.tables import bytes_text
from beam_pipeline.storage.files import free_bytes, remove_folder, unique_path
from beam_pipeline.storage.many_files import moves_to_folder
from beam_pipeline.storage.matching import FileVersion, match
from beam_pipeline.storage.parquet import read_row_groups

_LETTERS = "letters:"
_MIN_DOCUMENTS = 1000  # fewer may be copies of one leak
SIZES = "sizes"  # an output of count_ngrams
_TRAIN_COUNTS = (
    *("train_rows", "train_texts", "train_without_text", "train_text_bytes", "train_ngrams"),
    "matches",
)
Sizes = Iterable[tuple[ScannedUnit, UnitSize]]
# In overlap_matches and overlap_instances, before compression.
_MATCH_BYTES, _PLACE_BYTES, _PAIR_BYTES = 52, 8, 32
_COPIES = 3  # per work unit, per group of training files, in the output


# --- boilerplate ------------------------------------------------------------------------------


class BucketBoilerplate(NamedTuple):
    """The boilerplate of a bucket of n-grams."""

    shared: np.ndarray  # SHARED_COUNTS
    lines_path: str


def filter_at(boilerplate_path: str | None) -> Keep | None:
    """Returns the filter of a file of keys, or None if everything counts."""
    return None if boilerplate_path is None else read_boilerplate(boilerplate_path)


def find_dropped(
    files: Sequence[FileVersion],
    run: JobRun,
    prepared: Prepared,
    config: DeconConfig,
    train_counts: Mapping[str, Any],
) -> str:
    """Writes the n-grams that --drop_ngrams lists or many evaluation rows have; returns the path.

    `train_counts` only delays this step until after the scan, which waits for the index.
    """
    with logged("Read dropped n-grams"):
        path, shards = run.below("boilerplate/dropped"), range(prepared.num_index_shards)
        indexes = [prepared.open_index(shard) for shard in shards]
        ngrams = (ngram for file in files for ngram in read_ngrams(file))
        postings = prepared.evaluation().postings
        found = [find_ngrams(ngrams, indexes, postings)]
        if most := config.rules_of_preset.max_eval_rows:
            found.append(common_ngrams(indexes, postings, most))
        write_keys(path, run.folder, found)
    return path


def count_documents(scanned: ScannedUnit) -> Iterator[tuple[int, bytes]]:
    """Yields the packed SHARED_COUNTS of a work unit by bucket of n-grams."""
    with logged("Count documents", path=scanned.unit.path):
        counts = count_shared(scanned.paths)
    buckets, starts = np.unique(bucket_of(counts), return_index=True)
    for bucket, of_bucket in zip(buckets.tolist(), np.split(counts, starts[1:]), strict=False):
        yield bucket, pack(of_bucket)


def list_boilerplate(
    keyed: tuple[int, Iterable[bytes]],
    run: JobRun,
    prepared: Prepared,
    dropped_path: str,
    config: DeconConfig,
    train_counts: Mapping[str, Any],
) -> BucketBoilerplate:
    """Returns the boilerplate of a bucket, after writing its lines to a file."""
    bucket, packed = keyed
    shared = add_shared(unpack(each, SHARED_COUNTS) for each in packed)
    most, share = config.max_document_frequency, config.rules_of_preset.max_document_share
    if share and not most:
        most = max(_MIN_DOCUMENTS, int(train_counts["train_texts"] * share))
    found = find_boilerplate(shared, most, read_keys(dropped_path))
    path = run.below(f"boilerplate/{bucket:016d}.jsonl")
    write_boilerplate_lines(path, run.folder, found, prepared.evaluation().postings)
    return BucketBoilerplate(found, path)


def gather_boilerplate(
    _: bytes, run: JobRun, dropped_path: str, found: Iterable[BucketBoilerplate]
) -> str:
    """Writes the keys of all boilerplate and dropped n-grams to one file; returns its path."""
    path = run.below("boilerplate/keys")
    parts = [read_keys(dropped_path), *(bucket.shared for bucket in found)]
    write_keys(path, run.folder, parts)
    return path


# --- evaluation rows ----------------------------------------------------------------------------


def count_ngrams(
    scanned: ScannedUnit,
    prepared: Prepared,
    details: DetailsOptions,
    boilerplate_path: str | None = None,
) -> Iterator[Any]:
    """Yields (bucket of evaluation rows, PackedCounts), and (work unit, UnitSize) to SIZES."""
    with freeing_step("Count n-grams", path=scanned.unit.path, row_offset=scanned.row_offset):
        evaluation, keep = prepared.evaluation(), filter_at(boilerplate_path)
        rows, size = measure_unit(scanned, evaluation, details, keep)
        yield TaggedOutput(SIZES, (scanned, size))
        yield from pack_counts(scanned.paths, rows, evaluation.postings, keep)


def write_evaluation_rows(
    keyed: tuple[int, Iterable[PackedCounts]],
    run: JobRun,
    prepared: Prepared,
    details: DetailsOptions,
    boilerplate_path: str | None = None,
) -> BucketFiles:
    """Writes the files of a bucket of evaluation rows."""
    bucket, packed = keyed
    with freeing_step("Write evaluation rows", bucket=bucket):
        prefix, rows = run.below(f"buckets/{bucket:08d}"), prepared.open_rows()
        total = add_counts(each.counts() for each in packed)
        dropped = None
        if boilerplate_path is not None:
            postings = prepared.evaluation().postings
            dropped = boilerplate_of(boilerplate_path, bucket, postings)
        texts = prepared.open_tokens()
        files = write_bucket(prefix, run.folder, total, rows, texts, dropped)
        if details.mode == COMPACT:
            path, numbers = f"{prefix}.texts.gz", np.unique(total.rows["number"])
            write_eval_texts(path, run.folder, numbers, rows)
            files = files._replace(texts_path=path)
        return files


# --- room -------------------------------------------------------------------------------------


def set_quotas(
    _: bytes, output: str, details: DetailsOptions, sizes: Sizes
) -> Iterator[tuple[str, int | None]]:
    """Yields the max details of each work unit by its name; checks as `check_room`."""
    ordered = sorted(sizes, key=lambda sized: sized[0].order)
    check_room([size for _, size in ordered], output, details)
    names = [scanned.name for scanned, _ in ordered]
    num_kept = [size.details.num_kept for _, size in ordered]
    yield from zip(names, quotas(num_kept, details.max_total), strict=True)


def check_room(sizes: Sequence[UnitSize], output: str, details: DetailsOptions) -> None:
    """Raises ProbelineError if the uncompressed results exceed their limit or the free space."""
    matches = add_sizes(sizes)
    of_matches = matches.num_matches * _MATCH_BYTES + matches.num_places * _PLACE_BYTES
    of_matches = _COPIES * (of_matches + matches.num_pairs * _PAIR_BYTES)
    num_records, num_bytes = _details([size.details for size in sizes], details.max_total)
    name, limit = f"--max_details_gb={details.max_gb}", details.max_gb * 10**9
    if (free := free_bytes(output)) is not None:
        if of_matches > free:
            raise ProbelineError(
                f"overlap_matches in {output} would have {matches.num_matches:,} "
                f"records, which with their temporary copies take {bytes_text(of_matches)} before "
                f"compression, more than the {bytes_text(free)} free there; the scan is kept: make "
                "room, then go on with --skip_existing"
            )
        if free - of_matches < limit:
            name = f"the {bytes_text(free)} free there less {bytes_text(of_matches)} for matches"
            limit = free - of_matches
    if num_bytes > limit:
        raise ProbelineError(
            f"overlap_details in {output} would have {num_records:,} records of "
            f"{bytes_text(num_bytes)} before compression, more than {name}; the scan is kept: go "
            f"on with --skip_existing and --details={NONE if details.mode == COMPACT else COMPACT}"
            ", --max_details_per_pair=1, a lower --max_details or, with room for it, "
            f"--max_details_gb={-(-num_bytes // 10**9)}"
        )


def _details(sizes: Sequence[DetailsSize], max_details: int | None) -> tuple[int, int]:
    """Returns the number of details to be written, and their max size in bytes."""
    num_records = num_bytes = 0
    may_write = quotas([size.num_kept for size in sizes], max_details)
    for size, quota in zip(sizes, may_write, strict=True):
        count = size.num_kept if quota is None else min(quota, size.num_kept)
        num_records += count
        num_bytes += min(size.num_kept_bytes, count * size.max_bytes) + size.num_text_bytes
    return num_records, num_bytes


# --- work units ---------------------------------------------------------------------------------


def expand(
    scanned: ScannedUnit,
    run: JobRun,
    prepared: Prepared,
    details: DetailsOptions,
    quotas: Mapping[str, int | None],
    preset: Preset,
    boilerplate_path: str | None = None,
) -> ExpandedUnit:
    """Writes the files of a work unit."""
    with freeing_step("Expand", path=scanned.unit.path, row_offset=scanned.row_offset):
        prefix, keep = run.below(f"units/{scanned.name}"), filter_at(boilerplate_path)
        given = prepared.evaluation(), details, keep, quotas[scanned.name]
        given = *given, preset.short_rows_contaminate
        return expand_unit(scanned, prefix, run.folder, *given)


def join_group(keyed: tuple[int, Iterable[ExpandedUnit]], run: JobRun) -> FileGroup:
    """Writes the files of a group of training files."""
    number, units = keyed
    with freeing_step("Join training files", group=number):
        return join_units(number, units, run.below(f"groups/{number:06d}"), run.folder)


# --- the end ------------------------------------------------------------------------------------


def count_scanned(scanned: ScannedUnit) -> Counter[str]:
    """Returns the training-side counts of a work unit."""
    summary = scanned.summary
    return Counter(
        train_rows=summary.num_rows,
        train_texts=summary.num_texts,
        train_without_text=summary.num_without_text,
        train_text_bytes=summary.text_bytes,
        train_ngrams=summary.num_ngrams,
        matches=summary.num_matches,
        **{f"{_LETTERS}{reason}": count for reason, count in summary.letters.items()},
    )


def add_scanned(counters: Iterable[Counter[str]]) -> Counter[str]:
    """Returns the sum of training-side counts."""
    total: Counter[str] = Counter()
    for counts in counters:
        total.update(counts)  # `+` would drop zeros
    return total


def check_scan(
    total: Counter[str],
    run: JobRun,
    summary: dict[str, Any],
    text_field: str,
    first_file: InputFile,
    prepared: Prepared,
) -> dict[str, Any]:
    """Returns the training-side counts and records the end of the scan.

    Raises ProbelineError if no record has a text, or the counts do not add up.
    """
    letters = {
        name.removeprefix(_LETTERS): count
        for name, count in sorted(total.items())
        if name.startswith(_LETTERS)
    }
    if not total["train_texts"]:
        raise ProbelineError(
            f"none of {total['train_rows']} records of {summary['num_train_files']} training files "
            f"has a text in the field {text_field!r}: "
            + "; ".join(_why_without_texts(total, letters, first_file, prepared))
        )
    read = total["train_texts"] + total["train_without_text"]
    if read + sum(letters.values()) != total["train_rows"]:
        raise ProbelineError(
            f"{total['train_rows']} training records were read, but {read} scanned: this is a "
            "fault of Probeline, report it"
        )
    counts = {**{name: total[name] for name in _TRAIN_COUNTS}, "dead_letters": letters}
    summarize(run, summary, prepared, "gather", counts)
    return counts


def _why_without_texts(
    total: Counter[str], letters: Mapping[str, int], first_file: InputFile, prepared: Prepared
) -> Iterator[str]:
    if total["train_without_text"] or not letters:
        names = shortened(fields_of(first_file))
        yield f"name the field with --text_field; {first_file.path} has {names}"
    if letters:
        paths = [file.path for file in match(letters_path(f"{prepared.folder}/*"))]
        tables = (table for path in paths for table in read_row_groups(path))
        first = [DeadLetter(**row) for table in tables for row in table.slice(0, 1).to_pylist()]
        yield explain_letters(letters, first)


def write_results(
    run: JobRun,
    summary: dict[str, Any],
    options: OutputOptions,
    prepared: Prepared,
    train_counts: Mapping[str, Any],
    sizes: Sizes,
    expanded: Iterable[ExpandedUnit],
    groups: Iterable[FileGroup],
    buckets: Iterable[BucketFiles],
    boilerplate: Iterable[BucketBoilerplate] | None = None,  # None if every n-gram counts
    boilerplate_path: str | None = None,
) -> None:
    """Writes all files to a folder of this attempt, moves them, and writes `.SUCCESS`."""
    temp_folder, rows = run.folder, prepared.open_rows()
    by_number = sorted(buckets)
    results = Results(
        sorted(expanded, key=lambda unit: unit.scanned.order),
        sorted(groups),
        by_number,
        _verdicts(by_number, options, prepared, boilerplate_path),
        options,
        None if boilerplate is None else sorted(found.lines_path for found in boilerplate),
        [letters_path(prepared.rows_path)] if prepared.letters else [],
    )
    with freeing_step("Finish", output=run.output):
        folder = unique_path(temp_folder, "output")
        names = write_outputs(folder, temp_folder, rows, results)
        tokenizer = tokenizer_named(summary["tokenizer"])
        write_eval_tokens(f"{folder}/{EVAL_TOKENS}", temp_folder, rows.texts(), tokenizer)
        report = write_contents(folder, temp_folder, options.lengths)
        names += [EVAL_TOKENS, REPORT]
        letters = Counter(train_counts["dead_letters"]) + Counter(prepared.letters)
        counts = {**train_counts, **_count_details(results, sizes)}
        counts["eval_rows_not_looked_up"] = results.verdicts.num_not_looked_up()
        counts |= _count_short(results)
        if warning := _short_row_warning(counts, report):
            prepared = prepared._replace(warnings=(*prepared.warnings, warning))
        counts["dead_letters"] = dict(sorted(letters.items()))
        summarize(run, summary, prepared, "done", counts, sorted(names), folder)
        run.move(moves_to_folder(folder, [*names, SUMMARY], run.output))
        run.finish()


def tidy_up(run: JobRun) -> None:
    """Removes the match files, unless omitted details can still be made from them."""
    if not read_summary(run.output)["counts"]["details_left_out"]:
        remove_folder(run.path(WORK_FOLDER))


def _verdicts(
    buckets: Sequence[BucketFiles],
    options: OutputOptions,
    prepared: Prepared,
    boilerplate_path: str | None,
) -> RowVerdicts:
    bare = np.empty(0, PAIRS)
    if boilerplate_path is not None:
        bare = bare_rows(boilerplate_path, prepared.evaluation().postings)
    texts = prepared.open_tokens()
    return RowVerdicts(
        prepared.open_rows(),
        np.diff(texts.firsts),
        left_out(texts, options.min_tokens, options.skip_degenerate),
        bare,
        hits_of(buckets),
        options.lengths,
    )


def _count_short(results: Results) -> dict[str, int]:
    units = results.units
    return {
        "train_text_chars": sum(unit.scanned.summary.num_text_chars for unit in units),
        "short_row_documents": sum(unit.num_short_documents for unit in units),
        "short_row_chars": sum(unit.num_short_chars for unit in units),
    }


def _short_row_warning(counts: Mapping[str, Any], report: Report) -> str | None:
    """Returns a warning that short rows alone contaminate documents, or None."""
    if not (count := counts["short_row_documents"]):
        return None
    named = ", ".join(
        f"id {printable(row.instance_id)} of {printable(row.eval_dataset)} in "
        f"{row.num_train_documents:,} documents"
        for row in report.short_rows
    )
    share = counts["short_row_chars"] / max(1, counts["train_text_chars"])
    return (
        f"Warning: {count:,} of {report.removal.total.num_documents:,} contaminated documents, "
        f"with {share:.1%} of the training characters, share nothing but evaluation rows of fewer "
        f"than {SHORT_TOKENS} tokens, such as {named}; --preset=precise or "
        f"--min_tokens={SHORT_TOKENS} does not count them"
    )


def _count_details(results: Results, sizes: Sizes) -> dict[str, int]:
    num_written = sum(unit.num_details for unit in results.units)
    counter("overlap_details").inc(num_written)
    num_records = 0
    if results.options.details.mode != NONE:
        num_records = sum(size.num_matches for _, size in sizes)
    return {
        "details": num_written,
        "details_left_out": num_records - num_written,
        "detail_bytes": sum(size.details.num_bytes for _, size in sizes),
    }
