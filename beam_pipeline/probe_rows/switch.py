"""The switch of generations: the dataset in NEXT_FOLDER replaces the one around it.

A run that appends to a dataset writes the next generation to NEXT_FOLDER. `_SUCCESS` in that folder
is the commit. The steps that follow are idempotent, and another attempt or the next run may repeat
them:

  manifest.json   the new one: from now on readers use NEXT_FOLDER
  files           appear in the dataset; those of the old generation are deleted
  _SUCCESS        the new one: from now on readers use the dataset
  NEXT_FOLDER     is removed, its _SUCCESS first

Readers thus find one complete generation, old or new, whenever a run is killed.
"""

from collections.abc import Callable, Iterator
from functools import partial

from beam_pipeline.dataset.croissant import CROISSANT_NAME
from beam_pipeline.dataset.data_card import CARD_HEADS, CARD_NAME
from beam_pipeline.dataset.manifest import (
    DEAD_LETTER_FOLDER,
    INDEX_NAME,
    MANIFEST_NAME,
    NAMES_NAME,
    NEXT_FOLDER,
    SPLITS,
    SUCCESS_NAME,
    Manifest,
    committed_manifest,
    success_stamp,
)
from beam_pipeline.jobs.output_folder import OutputFiles, leftovers
from beam_pipeline.storage import files
from beam_pipeline.storage.many_files import Move, copy_files, write_guarded

_DESCRIPTIONS = (CARD_NAME, CROISSANT_NAME)
Guard = Callable[[], None] | None  # raises if another run has taken the output


def settle(output: str, temp_folder: str, guard: Guard) -> None:
    """Completes the switch of a run killed after its commit; removes what was not committed."""
    if not files.is_local(output) and not files.is_gcs(output):
        return  # other filesystems have no next generation
    following = f"{output.rstrip('/')}/{NEXT_FOLDER}"
    files.check_not_linked(following)
    if files.exists(f"{following}/{SUCCESS_NAME}"):
        switch(output, temp_folder, guard)
    else:
        files.remove_folder(following)


def switch(output: str, temp_folder: str, guard: Guard) -> None:
    """Makes the committed dataset in NEXT_FOLDER the one in `output`."""
    output = output.rstrip("/")
    following = f"{output}/{NEXT_FOLDER}"
    data = committed_manifest(following)
    manifest = Manifest.from_json(data)
    write = partial(write_guarded, temp_folder=temp_folder, guard=guard)
    write(f"{output}/{MANIFEST_NAME}", data)
    named = {path: Move(f"{following}/{path}", f"{output}/{path}", *content)
             for path, *content in _files_of(manifest, following)}  # fmt: skip
    if guard is not None:
        guard()
    copy_files(list(named.values()), temp_folder)
    kept = {f"{output}/{name}" for name in (*named, *_DESCRIPTIONS, MANIFEST_NAME, SUCCESS_NAME)}
    files.delete_files([path for path in leftovers(output, DATASET_FILES) if path not in kept])
    for name in _DESCRIPTIONS:
        path, text = f"{output}/{name}", files.read_file(f"{following}/{name}")
        if text is not None and (name != CARD_NAME or _is_ours(path)):
            write(path, text)
    write(f"{output}/{SUCCESS_NAME}", success_stamp(data))
    if files.exists(f"{following}/{SUCCESS_NAME}"):
        files.delete_files([f"{following}/{SUCCESS_NAME}"])
    files.remove_folder(following)


def _is_ours(card: str) -> bool:
    return not files.exists(card) or files.begins_with(card, *CARD_HEADS)


def _files_of(manifest: Manifest, folder: str) -> Iterator[tuple[str, int, int]]:
    """Yields path, size and checksum of each file that the manifest names."""
    for name, split in manifest.splits.items():
        for shard in split.shards:
            yield shard.path, shard.num_bytes, int(shard.crc32c, 16)
        index = f"{name}/{INDEX_NAME}"
        found = files.file_infos([f"{folder}/{index}"])[f"{folder}/{index}"]
        yield index, found.num_bytes if found else 0, int(split.index_crc32c, 16)
    if manifest.names:
        yield NAMES_NAME, manifest.names.num_bytes, int(manifest.names.crc32c, 16)
    for letters in manifest.dead_letter_files:
        yield letters.path, letters.num_bytes, int(letters.crc32c, 16)


DATASET_FILES = OutputFiles(
    flag="output",
    name="dataset",
    success=SUCCESS_NAME,
    patterns={
        "": rf"{MANIFEST_NAME}|{CROISSANT_NAME}|{NAMES_NAME}"
        rf"|({SUCCESS_NAME}|{MANIFEST_NAME}|{CROISSANT_NAME}|{CARD_NAME}|{NAMES_NAME})\.\d+\.tmp",
        **{
            split: rf"({split}_shard_\d+-of-\d+\.(arrayrecord|tfrecord)|{INDEX_NAME})"
            for split in SPLITS
        },
        DEAD_LETTER_FOLDER: r"dead_letter_\d+-of-\d+\.parquet",
    },
    marked={CARD_NAME: CARD_HEADS},
    settle=settle,
)
