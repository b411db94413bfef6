"""The training documents that share most with some evaluation rows, and passages of both texts.

  [Row], overlap_matches → documents of each row, with the shared places
  documents, overlap_details or the files of texts → passages of both texts

The matches are read once, one row group at a time. Only those of a few documents per row are kept,
with merged places, so memory does not depend on how often an n-gram occurs.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline.overlap.report.contents import ROW_KEY, Row
from beam_pipeline.overlap.report.output import Advance, Output, decoded, reading
from beam_pipeline.overlap.report.passages import Piece, Span, passages, shown_spans
from beam_pipeline.overlap.results.contaminated import merge_spans_of, places_of
from beam_pipeline.overlap.results.details import COMPACT, FULL
from beam_pipeline.overlap.results.layout import DETAILS, EVAL_TEXTS, MATCHES, TRAIN_TEXTS
from beam_pipeline.overlap.results.matches import cut_by_weight
from beam_pipeline.overlap.results.output_files import place_lists

DOCUMENTS_PER_ROW = 3
_DOCUMENT_KEY = ("train_path", "train_row")
_PAIR_KEY = ("place", *_DOCUMENT_KEY)
_OFFSETS = ("eval_offsets", "train_offsets")
_VALUES = ("train_doc_id", "n", *_OFFSETS)
_PLACES_AT_A_TIME = 1 << 20


@dataclass
class Document:
    """A training document's overlap with a row, with pieces if the output has the texts."""

    train_path: str
    train_row: int
    doc_id: str | None
    num_ngrams: Counter[int]  # by n
    eval_spans: list[Span]
    train_spans: list[Span]
    in_eval: list[Piece] | None = None
    in_train: list[Piece] | None = None


@dataclass
class Instance:
    """An evaluation row with the documents that share most with it, best first."""

    row: Row
    documents: list[Document]


def read_instances(
    output: Output, rows: Sequence[Row], details: str, advance: Advance
) -> list[Instance]:
    """Returns some rows with their documents, and passages of the texts that --details kept."""
    instances = [Instance(row, []) for row in rows]
    for place, document in _documents(_best_matches(output, rows, advance)):
        instances[place].documents.append(document)
    _add_passages(output, instances, details, advance)
    return instances


def num_bytes_read(output: Output, details: str) -> int:
    """Returns the total size of the files to read, for a progress bar."""
    texts = [name for name, _ in _FILES.get(details, [])]
    return sum(map(output.num_bytes, [MATCHES, *texts]))


# --- matches --------------------------------------------------------------------------------------


def _best_matches(output: Output, rows: Sequence[Row], advance: Advance) -> pa.Table | None:
    """Returns the matches of each row's best documents, with the row's index as `place`."""
    keys = pa.table({name: [getattr(row, name) for row in rows] for name in ROW_KEY})
    keys = keys.append_column("place", pa.array(range(len(rows)), pa.int64()))
    best = None
    for group in (
        output.row_groups(MATCHES, [*ROW_KEY, *_DOCUMENT_KEY, *_VALUES], advance) if rows else ()
    ):
        names = group.select(ROW_KEY).append_column("match", pa.array(range(len(group))))
        chosen = names.join(keys, list(ROW_KEY), join_type="inner").sort_by("match")
        if len(chosen):
            found = group if len(chosen) == len(group) else group.take(chosen["match"])
            found = found.append_column("place", chosen["place"])
            found = found.append_column("num_ngrams", pa.array(np.ones(len(found), np.int64)))
            sizes = sum(pc.list_value_length(found[name]).to_numpy() for name in _OFFSETS)
            cuts = cut_by_weight(sizes.astype(np.int64), _PLACES_AT_A_TIME)
            parts = [_merged(found.slice(start, stop - start)) for start, stop in cuts]
            best = _best(pa.concat_tables([*([best] if best else []), *parts]), goes_on=True)
            del found, parts
        del group, names, chosen
        pa.default_memory_pool().release_unused()
    return None if best is None else _best(best, goes_on=False)


def _runs(matches: pa.Table, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first match of each run of equal keys, and the run of each match."""
    begins = np.ones(len(matches), bool)
    begins[1:] = False
    for name in names:
        column = matches[name].combine_chunks()
        begins[1:] |= pc.not_equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
    return np.flatnonzero(begins), np.cumsum(begins) - 1


def _merged(matches: pa.Table) -> pa.Table:
    """Makes one of all matches of a pair and n, with merged places."""
    firsts, of_match = _runs(matches, [*_PAIR_KEY, "n"])
    merged = matches.drop_columns([*_OFFSETS, "num_ngrams"]).take(pa.array(firsts))
    counts = np.bincount(of_match, matches["num_ngrams"].to_numpy()).astype(np.int64)
    for name in _OFFSETS:
        of_places, starts, ends = places_of(matches[name].combine_chunks())
        spans = merge_spans_of(of_match[of_places], starts, ends)
        bounds = np.searchsorted(spans.documents, np.arange(len(firsts) + 1))
        merged = merged.append_column(name, place_lists(bounds, spans.starts, spans.ends))
    return merged.append_column("num_ngrams", pa.array(counts))


def _best(matches: pa.Table, goes_on: bool) -> pa.Table:
    """Keeps the documents that share most with each row, and the last pair if more may follow.

    Documents are ranked by shared characters of the row, then by the number of n-grams.
    """
    rows = matches["place"].to_numpy()
    firsts, pair_of_match = _runs(matches, _PAIR_KEY)
    num_ngrams = np.bincount(pair_of_match, matches["num_ngrams"].to_numpy())
    of_places, starts, ends = places_of(matches["eval_offsets"].combine_chunks())
    spans = merge_spans_of(pair_of_match[of_places], starts, ends)
    num_chars = np.bincount(spans.documents, spans.ends - spans.starts, len(firsts))
    order = np.lexsort((-num_ngrams, -num_chars, rows[firsts]))
    row_of_pair = rows[firsts][order]
    run_begins = np.append(True, row_of_pair[1:] != row_of_pair[:-1])
    run = np.flatnonzero(run_begins)[np.cumsum(run_begins) - 1]
    is_kept = np.zeros(len(firsts), bool)
    is_kept[order[np.arange(len(order)) - run < DOCUMENTS_PER_ROW]] = True
    is_kept[-1] |= goes_on
    return matches.filter(pa.array(is_kept[pair_of_match]))


def _documents(matches: pa.Table | None) -> Iterator[tuple[int, Document]]:
    """Yields the row's index and the document of each pair, best first."""
    if matches is None:
        return
    found: list[tuple[tuple[int, int], int, Document]] = []
    firsts, _ = _runs(matches, _PAIR_KEY)
    for first, stop in itertools.pairwise([*firsts.tolist(), len(matches)]):
        of_pair = matches.slice(first, stop - first)
        counts = Counter[int]()
        for n, number in zip(of_pair["n"].to_pylist(), of_pair["num_ngrams"].to_pylist()):
            counts[n] += number
        (eval_starts, eval_ends), train = (_spans(of_pair[name]) for name in _OFFSETS)
        place, path, row, doc_id = (
            of_pair[name][0].as_py() for name in (*_PAIR_KEY, "train_doc_id")
        )
        spans = shown_spans(eval_starts, eval_ends), shown_spans(*train)
        document = Document(path, row, doc_id, counts, *spans)
        rank = -int((eval_ends - eval_starts).sum()), -counts.total()
        found.append((rank, place, document))
    for _, place, document in sorted(found, key=lambda each: each[0]):
        yield place, document


def _spans(lists: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """Returns starts and ends of all places, merged, without empty ones."""
    _, starts, ends = places_of(lists.combine_chunks())
    starts, ends = starts[starts < ends], ends[starts < ends]
    if not len(starts):
        return starts, ends
    return merge_spans_of(np.zeros(len(starts), np.int64), starts, ends)[1:]


# --- texts ----------------------------------------------------------------------------------------


# The files with texts, and the fields that identify a record in them.
_FILES: dict[str, list[tuple[str, tuple[str, ...]]]] = {
    FULL: [(DETAILS, (*ROW_KEY, *_DOCUMENT_KEY))],
    COMPACT: [(EVAL_TEXTS, ROW_KEY), (TRAIN_TEXTS, _DOCUMENT_KEY)],
}


def _add_passages(
    output: Output, instances: Sequence[Instance], details: str, advance: Advance
) -> None:
    """Adds passages to the documents if the output has both texts; holds one text at a time."""
    pairs = [(one.row, document) for one in instances for document in one.documents]
    for name, key in _FILES.get(details, []):
        wanted: dict[tuple, list[Document]] = defaultdict(list)
        for row, document in pairs:
            place = {each: getattr(row, each) for each in ROW_KEY}
            place |= {each: getattr(document, each) for each in _DOCUMENT_KEY}
            wanted[tuple(place[field] for field in key)].append(document)
        for place, texts in _texts(output, name, key, wanted, advance):
            for document in wanted[place]:
                if texts.eval_text is not None:
                    document.in_eval = passages(texts.eval_text, document.eval_spans)
                if texts.train_text is not None:
                    document.in_train = passages(texts.train_text, document.train_spans)
    for _, document in pairs:
        if document.in_eval is None or document.in_train is None:
            document.in_eval = document.in_train = None


class _Texts(msgspec.Struct):
    """The texts of a record, without the lists of its places."""

    eval_text: str | None = None
    train_text: str | None = None


def _texts(
    output: Output, name: str, key: Sequence[str], wanted: Iterable[tuple], advance: Advance
) -> Iterator[tuple[tuple, _Texts]]:
    """Yields the texts of the first record of each key; stops reading once all are found."""
    left = set(wanted)
    types = [(field, int if field.endswith("_row") else str) for field in key]
    decoder = msgspec.json.Decoder(msgspec.defstruct("Key", types))
    with reading(output.file(name)):
        for lines in output.lines(name, advance) if left else ():
            for line in lines:
                place = msgspec.structs.astuple(decoded(line, decoder))
                if place in left:
                    left.remove(place)
                    yield place, _texts_of(line)
            if not left:
                break


def _texts_of(line: bytes) -> _Texts:
    try:
        return msgspec.json.decode(line, type=_Texts)
    except msgspec.DecodeError:  # a lone surrogate
        return msgspec.convert(json.loads(line), _Texts)
