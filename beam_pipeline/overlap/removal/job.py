"""The jobs that go through the training files of a finished result: removal and attributes.

Both write a manifest that proves their counts. Those of a removal say that records and characters
in are those kept and those removed, for each file and each evaluation set.
"""

import functools
import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipeline import __version__
from beam_pipeline.cli.flags import values_of
from beam_pipeline.documents.fields import Fields
from beam_pipeline.errors import UsageError
from beam_pipeline.overlap.job.removal_config import RemovalConfig
from beam_pipeline.overlap.ngrams.token_kernels import empty_token, tokens_of
from beam_pipeline.overlap.ngrams.tokenizers import Tokenizer, tokenizer_named
from beam_pipeline.overlap.removal import attributes, by_file, cleaning
from beam_pipeline.overlap.removal.by_file import FileJob
from beam_pipeline.overlap.removal.cutting import Cut
from beam_pipeline.overlap.removal.options import (
    AttributeOptions,
    FileJobOptions,
    RemovalOptions,
)
from beam_pipeline.overlap.removal.training_files import plan_files, read_result
from beam_pipeline.overlap.results import layout
from beam_pipeline.overlap.results.contaminated import read_eval_tokens
from beam_pipeline.storage.files import exists, read_file, size_and_checksum

_CLEAN_CORPUS = "clean corpus"


def remove(
    options: RemovalOptions, beam_options: PipelineOptions, flag: str = "output_path"
) -> str | None:
    """Writes a clean corpus and returns its folder; None if only a template was written.

    Args:
      flag: of its folder, for messages.

    Raises:
      UsageError: the result is not finished, or the options do not suit it.
      ProbelineError: a file was changed since it was scanned, or cannot be written.
    """
    summary = read_result(options.result_path)
    cut = make_cut(options.removal, options.result_path, summary)
    job = FileJob(
        name=_CLEAN_CORPUS,
        flag=flag,
        result_path=options.result_path,
        output_path=options.output_path,
        folder="documents",
        manifest=layout.REMOVAL_MANIFEST,
        success=layout.SUCCESS_NAME,
        write=functools.partial(cleaning.clean_file, fields=_fields(summary), cut=cut),
        facts=_facts(options, summary, values_of(options.removal)),
    )
    return _run(job, options, summary, beam_options)


def check_output(options: RemovalOptions, flag: str) -> None:
    """Makes sure of the output of a removal whose result is still to be written.

    Raises:
      UsageError: it is finished and has to stay, or has other options or another result.
    """
    output, given = options.output_path, f"--{flag}={options.output_path}"
    if options.overwrite or not exists(f"{output}/{layout.SUCCESS_NAME}"):
        return
    if not options.skip_existing:
        raise UsageError(
            f"{given} holds a finished clean corpus: choose another folder, or say --overwrite to "
            "replace it"
        )
    manifest = orjson.loads(read_file(f"{output}/{layout.REMOVAL_MANIFEST}") or b"{}")
    difference = by_file.option_that_differs(manifest, values_of(options.removal))
    if not exists(f"{options.result_path}/{layout.SUCCESS_NAME}"):  # of a finished one see `remove`
        difference = difference or by_file.result_that_differs(manifest, options.result_path)
    if difference:
        raise by_file.other_output(_CLEAN_CORPUS, given, difference)


def write_attributes(options: AttributeOptions, beam_options: PipelineOptions) -> str | None:
    """Writes the attributes of all documents and returns the output, as `remove` does."""
    summary = read_result(options.result_path)
    folder = _attributes_folder(options)
    form = attributes.FORMS[options.format]
    write = functools.partial(
        form.write, fields=_fields(summary), attribute_name=options.attribute_name
    )
    given = {name: getattr(options, name) for name in ("format", "attribute_name")}
    job = FileJob(
        name="set of attributes",
        flag="output_path",
        result_path=options.result_path,
        output_path=options.output_path,
        folder=folder,
        manifest=attributes_manifest(options),
        success=f"{folder}/{layout.SUCCESS_NAME}",
        write=write,
        facts=_facts(options, summary, given),
    )
    return _run(job, options, summary, beam_options, form.name_of)


def _attributes_folder(options: AttributeOptions) -> str:
    return f"attributes/{options.attribute_name}"


def attributes_manifest(options: AttributeOptions) -> str:
    """Returns the path of the manifest of attributes below their output."""
    return f"{_attributes_folder(options)}/_manifest.json"


def _run(
    job: FileJob,
    options: FileJobOptions,
    summary: dict[str, Any],
    beam_options: PipelineOptions,
    new_name: Callable[[str], str] = str,
) -> str | None:
    input_paths = summary["options"]["input_path"]
    files = plan_files(options.result_path, input_paths, job.path(job.folder), new_name)
    return by_file.run(job, files, beam_options, options.overwrite, options.skip_existing)


def _fields(summary: dict[str, Any]) -> Fields:
    return Fields(summary["options"]["text_field"], summary["options"]["id_field"])


def _facts(
    options: FileJobOptions, summary: dict[str, Any], given: dict[str, Any]
) -> dict[str, Any]:
    """Returns the options for the manifest, and a fingerprint of all that the output depends on."""
    names = (layout.DOCUMENTS, layout.TRAIN_FILES)
    content = {
        "version": __version__,
        "options": given,
        "result": [size_and_checksum(f"{options.result_path}/{name}") for name in names],
        "read": [summary["options"][name] for name in ("tokenizer", "text_field", "id_field")],
    }
    packed = orjson.dumps(content, option=orjson.OPT_SORT_KEYS)
    fingerprint = hashlib.blake2b(packed, digest_size=8).hexdigest()
    return {"fingerprint": fingerprint, "options": given}


# --- the cut --------------------------------------------------------------------------------------


def make_cut(config: RemovalConfig, result_path: str, summary: dict[str, Any]) -> Cut | None:
    """Returns how texts are cut, None if contaminated documents are dropped.

    Raises:
      UsageError: the mask is no token, or one that an evaluation row has.
    """
    if config.remove == "document":
        return None
    tokenizer = tokenizer_named(summary["options"]["tokenizer"])
    if config.remove == "split":
        limits = config.margin_chars, config.min_piece_chars, config.max_pieces
        return Cut(tokenizer, None, *limits)
    _check_mask(config.mask_token, tokenizer, result_path)
    return Cut(tokenizer, config.mask_token)


def _check_mask(mask: str, tokenizer: Tokenizer, result_path: str) -> None:
    given = f"--mask_token={mask}"
    hashes = tokens_of(mask, tokenizer).hashes
    if not len(hashes) or empty_token() in hashes:
        raise UsageError(
            f"{given} begins or ends with what separates tokens, or is nothing else: give a word"
        )
    if np.isin(hashes, read_eval_tokens(f"{result_path}/{layout.EVAL_TOKENS}")).any():
        raise UsageError(
            f"{given} has a token of an evaluation row, so that a masked text might share one "
            "again: give another word"
        )
