"""What evaluation rows and training rows share, by brute force: every n-gram of all pairs."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from beam_pipeline.overlap.ngrams.tokenizers import Token, Tokenizer, effective_lengths
from beam_pipeline.overlap.results.rules import Rule

Records = list[dict[str, Any]]


def ngrams(tokens: list[Token], n: int) -> dict[str, list[list[int]]]:
    """Returns every n-gram, joined by spaces, and the ranges [start, end) where it stands."""
    found: dict[str, list[list[int]]] = {}
    for at in range(len(tokens) - n + 1):
        words = tokens[at : at + n]
        place = [words[0].start, words[-1].end]
        found.setdefault(" ".join(word.text for word in words), []).append(place)
    return found


class EvalRow(NamedTuple):
    """A row of an evaluation set that has a text."""

    dataset: str
    path: str
    row: int
    id: str
    text: str


class TrainRow(NamedTuple):
    """A row of the training data that has a text."""

    path: str
    row: int
    id: str | None
    text: str


@dataclass(frozen=True)
class Options:
    """The options that change what is written."""

    lengths: tuple[int, ...]
    tokenizer: Tokenizer
    max_document_frequency: int | None = None
    max_details_per_pair: int | None = None
    max_details: int | None = None
    skip_degenerate: bool = False
    min_tokens: int | None = None
    rules: tuple[Rule, ...] = ()
    drop_ngrams: tuple[str, ...] = ()
    max_eval_rows: int | None = None
    short_rows_contaminate: bool = True


class Hit(NamedTuple):
    """An n-gram that an evaluation row and a training row share, with all its places in both."""

    train: TrainRow
    number: int  # of the evaluation row
    n: int
    eval_places: list[list[int]]
    ngram: str
    train_places: list[list[int]]


def own_ngrams(
    rows: list[EvalRow], options: Options
) -> dict[tuple[int, int], dict[str, list[list[int]]]]:
    """Returns the n-grams of each evaluation row that is looked up, by its number and n."""
    own = {}
    for number, row in enumerate(rows):
        tokens = options.tokenizer.tokenize(row.text)
        if options.skip_degenerate and not any(token.text for token in tokens):
            continue
        if options.min_tokens is not None and len(tokens) < options.min_tokens:
            continue
        for n in effective_lengths(options.lengths, len(tokens)):
            own[number, n] = ngrams(tokens, n)
    return own


def all_hits(rows: list[EvalRow], training: list[TrainRow], options: Options) -> list[Hit]:
    """Returns every shared n-gram, ordered by (training path, row, evaluation row, n, places)."""
    own = own_ngrams(rows, options)
    hits = []
    for train in training:
        tokens = options.tokenizer.tokenize(train.text)
        theirs = {n: ngrams(tokens, n) for _, n in own}
        for (number, n), grams in own.items():
            for ngram, places in grams.items():
                if ngram in theirs[n]:
                    hits.append(Hit(train, number, n, places, ngram, theirs[n][ngram]))
    return sorted(
        hits,
        key=lambda hit: (
            hit.train.path, hit.train.row, hit.number, hit.n, hit.eval_places, hit.ngram
        ),
    )  # fmt: skip


def datasets_of(rows: list[EvalRow]) -> list[str]:
    """Returns the names of the evaluation sets in the order given."""
    return list(dict.fromkeys(row.dataset for row in rows))


def merged(places: list[list[int]]) -> list[list[int]]:
    """Returns ranges in order, those that meet as one."""
    spans: list[list[int]] = []
    for start, end in sorted(places):
        if spans and start <= spans[-1][1]:
            spans[-1][1] = max(end, spans[-1][1])
        else:
            spans.append([start, end])
    return spans


LENGTH = 4097


def colliding_texts() -> tuple[str, str]:
    """Returns two texts of LENGTH words: a common beginning, then a sequence and its complement.

    The sequence is that of Thue and Morse. Polynomial hashes modulo a power of two are then the
    same, whatever base and words are: their difference is a product of BASE^(2^i) - 1, and these
    have more than 64 factors of two. The beginning is as long as the window that is looked for
    first, which must be the same, too.
    """
    bits = [number.bit_count() & 1 for number in range(2048)]
    beginning = "c " * (LENGTH - len(bits))
    one, other = (" ".join(words[bit] for bit in bits) for words in ("ab", "ba"))
    return beginning + one, beginning + other
