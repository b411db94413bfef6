"""What becomes of each contaminated record: its pieces, their ids, and counts of it all."""

import hashlib
from collections import Counter

from beam_pipeline.documents.batch import encode
from beam_pipeline.overlap.removal.by_file import Counts
from beam_pipeline.overlap.removal.cutting import Cut, cut_text
from beam_pipeline.overlap.removal.training_files import DocumentReader, Documents

_OF_DOCUMENTS = (
    *("contaminated", "changed", "records_removed", "pieces"),
    *("contaminated_chars", "contaminated_chars_kept", "chars_removed", "mask_chars"),
)


def piece_id(identifier: str, number: int, text: str) -> str:
    """Returns the id of a piece of a document: its number and 16 hex digits of its text behind it.

    A record has the same id only by chance, one in 2**64, or if it is the same piece.
    """
    digest = hashlib.blake2b(encode(text), digest_size=8).hexdigest()
    return f"{identifier}-{number}-{digest}"


class Changes:
    """Decides what becomes of each contaminated record, and counts it."""

    def __init__(self, documents: DocumentReader, cut: Cut | None):
        self._documents, self._cut = documents, cut
        self.is_split = cut is not None and cut.mask is None
        self.num_unnamed = 0  # pieces without an id of their own
        self._total = [0] * len(_OF_DOCUMENTS)
        self._by_set: dict[str, list[int]] = {}

    def within(self, first_row: int, stop_row: int) -> Documents:
        """Returns the contaminated documents of some rows, as `DocumentReader` does."""
        return self._documents.within(first_row, stop_row)

    def texts(self, documents: Documents, index: int, text: str) -> list[str]:
        """Returns the texts that remain of a record; [] drops it."""
        pieces: list[str] = []
        added = 0
        if self._cut is not None:
            spans = documents.spans_at(index)
            pieces = cut_text(text, spans, self._cut)
            if self._cut.mask and pieces:
                added = len(self._cut.mask) * len(spans)
        kept, is_kept = sum(map(len, pieces)) - added, bool(pieces)
        found = (1, is_kept, not is_kept, len(pieces), len(text), kept, len(text) - kept, added)
        _add(self._total, found)
        for name in documents.datasets_at(index):
            _add(self._by_set.setdefault(name, [0] * len(_OF_DOCUMENTS)), found)
        return pieces

    def counts(self, num_rows: int, num_chars: int) -> Counts:
        """Returns what was counted of a file with so many records, and characters in its texts."""
        total, *by_set = (
            Counter(dict(zip(_OF_DOCUMENTS, sums, strict=True)))
            for sums in (self._total, *self._by_set.values())
        )
        untouched = num_rows - total["contaminated"]
        total.update(
            records_in=num_rows,
            records_kept=untouched + total["changed"],
            records_out=untouched + total["pieces"],
            chars_in=num_chars,
            chars_kept=num_chars - total["chars_removed"],
            unnamed_pieces=self.num_unnamed,
        )
        return Counts(total, dict(zip(self._by_set, by_set, strict=True)))


def _add(sums: list[int], found: tuple[int, ...]) -> None:
    for at, count in enumerate(found):
        sums[at] += count
