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

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
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
from beam_pipeline.dataset.rows import open_dataset
from beam_pipeline.errors import ProbelineError
from beam_pipeline.jobs.output_folder import OutputFiles, leftovers
from beam_pipeline.storage import files
from beam_pipeline.storage.gcs import REQUESTS_AT_A_TIME, FileInfo
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
    """Makes the committed dataset in NEXT_FOLDER the one in `output`.

    ProbelineError, before anything is replaced, if one of its files is missing or damaged.
    """
    output = output.rstrip("/")
    following = f"{output}/{NEXT_FOLDER}"
    manifest, data = open_dataset(following).manifest, committed_manifest(following)
    named = {path: Move(f"{following}/{path}", f"{output}/{path}", *content)
             for path, *content in _files_of(manifest, following, output)}  # fmt: skip
    cure = f"{output} is unchanged: to keep it, remove {following}, then run the command again"
    if files.read_file(f"{output}/{MANIFEST_NAME}") == data:
        cure = f"{output} is replaced in part: remove {following}, then write it with --overwrite"
    for path, fault in _faults(named.values()):
        raise ProbelineError(f"{path} {fault}; {cure}")
    write = partial(write_guarded, temp_folder=temp_folder, guard=guard)
    write(f"{output}/{MANIFEST_NAME}", data)
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


def _faults(moves: Collection[Move]) -> Iterator[tuple[str, str]]:
    """Yields the files, or where they have gone their targets, that are not as listed."""
    infos = files.file_infos(move.source for move in moves)
    gone = {move for move in moves if infos[move.source] is None}
    targets = files.file_infos(move.target for move in gone)
    infos.update((move.source, targets[move.target]) for move in gone)
    places = [move.target if move in gone else move.source for move in moves]
    with ThreadPoolExecutor(REQUESTS_AT_A_TIME) as pool:
        contents = pool.map(_content, places, [infos[move.source] for move in moves])
        for move, content in zip(moves, contents, strict=True):
            if content == move[2:]:
                continue
            fault = "is missing"
            if content is not None and move not in gone:
                found, said = (f"{size} bytes, CRC {crc:08x}" for size, crc in (content, move[2:]))
                fault = f"has {found}, but the manifest beside it says {said}"
            yield move.source, fault


def _content(path: str, info: FileInfo | None) -> tuple[int, int] | None:
    """Returns the size and checksum of a file; None if there is none."""
    if info is None or info.crc32c is None:
        return info and files.size_and_checksum(path)
    return info.num_bytes, int(info.crc32c, 16)


def _is_ours(card: str) -> bool:
    return not files.exists(card) or files.begins_with(card, *CARD_HEADS)


def _files_of(manifest: Manifest, *folders: str) -> Iterator[tuple[str, int, int]]:
    """Yields path, size and checksum of each file that the manifest names.

    The size of an index, which the manifest lacks, is that in the first folder that has it.
    """
    for name, split in manifest.splits.items():
        for shard in split.shards:
            yield shard.path, shard.num_bytes, int(shard.crc32c, 16)
        index = f"{name}/{INDEX_NAME}"
        infos = files.file_infos(f"{folder}/{index}" for folder in folders)
        found = next(filter(None, infos.values()), None)
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
