"""Training text with planted evaluation rows, and the truth about the plants.

    evaluation sets → plants of each kind → documents with a plant ─┐
                    → boilerplate, near misses, background ─────────┴→ corpus.jsonl, truth.json

Generated sentences with an n-gram of `GUARD` tokens of an evaluation row are drawn again, so
documents share with the rows only what was planted.
"""

import gzip
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from benchmarks.peers.joined_strings import ngrams_of, tokens_of
from benchmarks.recall_prose import Topic, Voice, synonym

KINDS = ("verbatim", "prefix", "suffix", "lines", "embedded", "paraphrase")
SHORT = "short"  # plants of rows of fewer than GUARD tokens
GUARD = 8
_JOB_LENGTHS = (8, 11, 13)  # of --ngram_length and the rules
SHARED_BY = 20  # an n-gram of more evaluation rows is boilerplate here
_MIN_HALVED = 2 * GUARD  # tokens of a row whose halves are planted
_FIELDS = ("passage", "text", "question", "answer")  # of evaluation records, in this order

Place = tuple[str, int]  # evaluation set and row


class Row(NamedTuple):
    """An evaluation row; `tokens` are those of its text."""

    dataset: str
    number: int
    text: str
    tokens: list[str]

    @property
    def place(self) -> Place:
        return self.dataset, self.number


class Plant(NamedTuple):
    """A text planted in a document."""

    document: str
    kind: str
    place: Place
    text: str
    kin: list[Place]  # rows with at least half of their n-grams of GUARD tokens in the text


def words_of(text: str) -> list[str]:
    """Returns the tokens of a text without the empty ones at its ends."""
    return [token for token in tokens_of(text) if token]


# --- evaluation sets ---------------------------------------------------------------------------

_INSTRUCTION = (
    "The following is a question about an old chronicle. Choose the one answer that agrees with "
    "the chronicle, and give its letter only.\n\n"
)
_LICENCE = (
    "# Free to use, to change and to pass on, by anyone and for any purpose, as long as this\n"
    "# notice stays in every copy. It is given as it is: nobody answers for damage that comes of\n"
    "# its use.\n\n"
)


def generated_sets(num_rows: int, seed: int) -> dict[str, list[str]]:
    """Returns the texts of evaluation sets by name, `num_rows` in each."""
    makers = {
        "questions": _question,
        "asked": lambda voice, _: voice.say("ASKED"),
        "choices": _multiple_choice,
        "passages": _about_a_passage,
        "code": _function,
        "terms": lambda voice, _: voice.say("TERM"),
    }
    sets = {}
    for name, make in makers.items():
        texts: list[str] = []
        while len(texts) < num_rows:
            rng = random.Random(f"{seed} {name} {len(texts)}")
            texts.append(make(Voice(rng), texts))
        sets[name] = texts
    return sets


def _question(voice: Voice, earlier: list[str]) -> str:
    if earlier and voice.rng.random() < 0.1:  # the same question, with a different answer
        again = voice.rng.choice(earlier).partition("\n")[0]
    else:
        again = f"Question: {voice.say('QUESTION')}"
    return f"{again}\nAnswer: {voice.say('SENTENCE')}"


def _multiple_choice(voice: Voice, _: list[str]) -> str:
    choices = "".join(f"\n{letter}. {voice.say('CHOICE')}" for letter in "ABCD")
    return f"{_INSTRUCTION}{voice.say('QUESTION')}{choices}\nAnswer: {voice.rng.choice('ABCD')}"


def _about_a_passage(voice: Voice, earlier: list[str]) -> str:
    """Eight questions share a passage, which is the first line of each."""
    if len(earlier) % 8:
        passage = earlier[-1].partition("\n")[0]
    else:
        passage = " ".join(voice.say("SENTENCE") for _ in range(voice.rng.randint(3, 6)))
    return f"{passage}\n{voice.say('QUESTION')}"


def _function(voice: Voice, _: list[str]) -> str:
    lines = [voice.say("LINE") for _ in range(voice.rng.randint(1, 4))]
    return "\n".join([_LICENCE + voice.say("FUNCTION"), *lines])


def sets_of_folder(folder: Path, num_rows: int, seed: int) -> dict[str, list[str]]:
    """Returns up to `num_rows` distinct texts of each *.jsonl and *.jsonl.gz of a folder."""
    sets = {}
    for path in sorted([*folder.glob("*.jsonl"), *folder.glob("*.jsonl.gz")]):
        opened = gzip.open(path) if path.suffix == ".gz" else open(path, "rb")
        with opened as lines:
            texts = dict.fromkeys(filter(None, map(_text_of, lines)))
        # Consecutive rows, to include all rows of a question or a passage.
        first = random.Random(seed).randrange(max(1, len(texts) - num_rows + 1))
        sets[path.name.partition(".")[0]] = [*texts][first : first + num_rows]
    return sets


def _text_of(line: bytes) -> str:
    record = orjson.loads(line)
    fields = (record.get(name) for name in _FIELDS)
    return "\n".join(text for text in fields if isinstance(text, str) and text)


# --- shared text of rows ------------------------------------------------------------------------


class Rows:
    """All evaluation rows with their n-grams of GUARD tokens."""

    def __init__(self, sets: dict[str, list[str]]):
        self.all = [
            Row(name, number, text, words_of(text))
            for name, texts in sets.items()
            for number, text in enumerate(texts)
        ]
        self.rows_of: dict[str, list[int]] = defaultdict(list)  # by n-gram
        for at, row in enumerate(self.all):
            for ngram in dict.fromkeys(ngrams_of(row.tokens, GUARD)):
                self.rows_of[ngram].append(at)

    def kin(self, text: str) -> list[Place]:
        """Returns the rows of which a text has at least half of the n-grams."""
        ngrams = dict.fromkeys(ngrams_of(words_of(text), GUARD))
        found = Counter(at for ngram in ngrams for at in self.rows_of.get(ngram, ()))
        return [
            self.all[at].place
            for at, count in sorted(found.items())
            if 2 * count >= len({*ngrams_of(self.all[at].tokens, GUARD)})
        ]

    def pieces(self, row: Row, are_shared: bool) -> list[str]:
        """Returns the pieces of a row shared by more than SHARED_BY rows, or those in between."""
        words = row.text.split()
        shared = [False] * len(words)
        for at in range(len(words) - GUARD + 1):
            tokens = words_of(" ".join(words[at : at + GUARD]))[:GUARD]
            if len(self.rows_of.get(" ".join(tokens), ())) > SHARED_BY:
                shared[at : at + GUARD] = [True] * GUARD
        runs = itertools.groupby(zip(shared, words, strict=True), key=lambda each: each[0])
        return [" ".join(word for _, word in run) for kind, run in runs if kind == are_shared]

    def own_text(self, row: Row) -> str:
        """Returns the longest piece of a row shared by few rows."""
        return max(self.pieces(row, are_shared=False), key=len, default="")

    def boilerplate(self) -> list[str]:
        """Returns the distinct pieces shared by more than SHARED_BY rows."""
        found = (piece for row in self.all for piece in self.pieces(row, are_shared=True))
        return [*dict.fromkeys(found)]


# --- documents ----------------------------------------------------------------------------------


class Writer:
    """Writes generated text without an n-gram of GUARD tokens of an evaluation row."""

    def __init__(self, rows: Rows, voice: Voice):
        self._rows, self._voice, self._last = rows, voice, []

    def say(self, rule: str) -> str:
        """Returns a text of a rule, redrawn while it shares an n-gram."""
        for _ in range(100):
            text = self._voice.say(rule)
            tokens = self._last + words_of(text)
            if not any(ngram in self._rows.rows_of for ngram in ngrams_of(tokens, GUARD)):
                self._last = tokens[1 - GUARD :]
                return text
        raise RuntimeError(f"{rule}: a hundred texts share n-grams with evaluation rows")

    def paragraphs(self, num_words: int) -> list[str]:
        """Returns about that many words of prose, program code or documentation."""
        style = self._voice.rng.random()
        pieces, size = [], 0
        while size < num_words:
            if style < 0.6:
                count = self._voice.rng.randint(3, 7)
                pieces.append(" ".join(self.say("SENTENCE") for _ in range(count)))
            elif style < 0.8:
                lines = [self.say("LINE") for _ in range(self._voice.rng.randint(3, 8))]
                pieces.append("\n".join([self.say("FUNCTION"), *lines]))
            else:
                usage = [self.say("USAGE") for _ in range(self._voice.rng.randint(2, 5))]
                pieces.append("\n".join([self.say("HEADING"), "", *usage]))
            size += len(pieces[-1].split())
        return pieces


def planted_text(kind: str, row: Row, own_text: str, rng: random.Random) -> str:
    """Returns the planted text of a row: half or a paraphrase of its own text, otherwise all."""
    words, own = row.text.split(), own_text.split()
    if kind == "prefix":
        return " ".join(own[: len(own) // 2])
    if kind == "suffix":
        return " ".join(own[len(own) // 2 :])
    if kind == "lines":
        return "\n".join(" ".join(words[at : at + 8]) for at in range(0, len(words), 8))
    if kind == "paraphrase":
        return paraphrased(own, rng)
    return row.text if kind == "verbatim" else " ".join(words)


def paraphrased(words: Sequence[str], rng: random.Random) -> str:
    """Returns words in other words: reorders clauses, replaces two of three known words.

    Words missing from the vocabulary are replaced if they have more than four letters.
    """
    clauses: list[list[str]] = [[]]
    for word in words:
        clauses[-1].append(word)
        if word[-1] in ",;:":
            clauses.append([])
    clauses = [*clauses[1:], clauses[0]]
    told = []
    for word in (word for clause in clauses for word in clause):
        other = synonym(word, rng) or (synonym("quiet", rng) if len(word) > 4 else None)
        told.append(other if other and rng.random() < 2 / 3 else word)
    return " ".join(told)


class Corpus:
    """Documents and the truth about them, by seed."""

    def __init__(self, sets: dict[str, list[str]], num_per_kind: int, seed: int):
        self.rows = Rows(sets)
        self._seed = seed
        self._num_per_kind = num_per_kind
        self.kinds: dict[str, str] = {}  # of documents
        self.plants: list[Plant] = []

    def documents(self, num_background: int) -> Iterator[dict[str, str]]:
        """Yields all documents: with plants, boilerplate, near misses, and the background."""
        for number, (kind, row) in enumerate(self._chosen()):
            yield self._with_plant(f"{kind}-{number}", kind, row)
        boilerplate = self.rows.boilerplate()
        for number in range(self._num_per_kind if boilerplate else 0):
            text = boilerplate[number % len(boilerplate)]
            yield self._document(f"boilerplate-{number}", text)
        near = random.Random(f"{self._seed} near")
        for number in range(self._num_per_kind):
            yield self._document(f"near-{number}", "", _topic_of(near.choice(self.rows.all)))
        for number in range(num_background):
            yield self._document(f"background-{number}", "")

    def _chosen(self) -> Iterator[tuple[str, Row]]:
        """Yields (kind, row): rows in random order, none with kin among earlier ones."""
        rng = random.Random(f"{self._seed} plants")
        rest = rng.sample(self.rows.all, len(self.rows.all))
        wanted = [kind for kind in (*KINDS, SHORT) for _ in range(self._num_per_kind)]
        taken: set[Place] = set()
        for kind in wanted:
            suits = (row for row in rest if row.place not in taken and self._suits(kind, row))
            if (row := next(suits, None)) is None:
                continue
            taken |= {row.place, *self.rows.kin(row.text)}
            yield kind, row

    def _suits(self, kind: str, row: Row) -> bool:
        if (kind == SHORT) != (len(row.tokens) < GUARD):
            return False
        # Distinct halves need unshared text.
        return kind not in ("prefix", "suffix", "paraphrase") or (
            len(words_of(self.rows.own_text(row))) >= _MIN_HALVED
        )

    def _with_plant(self, name: str, kind: str, row: Row) -> dict[str, str]:
        rng = random.Random(f"{self._seed} {name}")
        text = planted_text(kind, row, self.rows.own_text(row), rng)
        kin = [place for place in self.rows.kin(text) if place != row.place]
        self.plants.append(Plant(name, kind, row.place, text, kin))
        return self._document(name, text, is_inside=kind in ("embedded", SHORT))

    def _document(
        self, name: str, text: str, topic: Topic | None = None, is_inside: bool = False
    ) -> dict[str, str]:
        """Returns a document with a text as a paragraph, or in the middle of a sentence."""
        rng = random.Random(f"{self._seed} {name} text")
        writer = Writer(self.rows, Voice(rng, topic))
        pieces = writer.paragraphs(rng.choice((40, 120, 300)))
        at = rng.randrange(len(pieces))
        if is_inside:
            words = pieces[at].split(" ")
            words.insert(rng.randrange(1, len(words)), text)
            pieces[at] = " ".join(words)
        elif text:
            pieces.insert(at, text)
        self.kinds[name] = name.partition("-")[0]
        return {"id": name, "text": "\n\n".join(pieces)}

    def truth(self) -> dict[str, Any]:
        """Returns the truth about the plants, after `documents`."""
        return {
            "num_tokens": {
                name: [len(row.tokens) for row in self.rows.all if row.dataset == name]
                for name in dict.fromkeys(row.dataset for row in self.rows.all)
            },
            "documents": self.kinds,
            "plants": [plant._asdict() for plant in self.plants],
        }


def _topic_of(row: Row) -> Topic:
    """Returns a topic of the words of a row."""
    words = [token for token in dict.fromkeys(row.tokens) if len(token) > 3 and token.isalpha()]
    return Topic(dict.fromkeys(("NOUN", "ADJ", "SURNAME"), words) if words else {})


def write_corpus(
    folder: str, evals: str | None, num_rows: int, num_per_kind: int, num_background: int, seed: int
) -> None:
    """Writes corpus.jsonl, evals/SET.jsonl, evals.jsonl with all of them, and truth.json.

    `evals` is a folder of evaluation sets; None generates them.
    """
    path = Path(folder)
    (path / "evals").mkdir(parents=True)
    sets = sets_of_folder(Path(evals), num_rows, seed) if evals else generated_sets(num_rows, seed)
    rows = {
        name: [{"id": f"{name}-{at}", "text": text} for at, text in enumerate(texts)]
        for name, texts in sets.items()
    }
    for name, same in rows.items():
        _write(path / "evals" / f"{name}.jsonl", same)
    _write(path / "evals.jsonl", itertools.chain(*rows.values()))  # for the peers
    corpus = Corpus(sets, num_per_kind, seed)
    _write(path / "corpus.jsonl", corpus.documents(num_background))
    (path / "truth.json").write_bytes(orjson.dumps(corpus.truth()))


def _write(path: Path, records: Iterable[dict[str, Any]]) -> None:
    with open(path, "wb") as file:
        for record in records:
            file.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))


def write_common_ngrams(path: str, corpus: str, most: int, tokenizer: str) -> None:
    """Writes a file for --drop_ngrams: the n-grams of more than `most` evaluation rows."""
    from beam_pipeline.overlap.ngrams.tokenizers import TOKENIZERS, effective_lengths

    num_rows: Counter[str] = Counter()
    for source in sorted((Path(corpus) / "evals").glob("*.jsonl")):
        for line in source.read_bytes().splitlines():
            words = [token.text for token in TOKENIZERS[tokenizer].tokenize(_text_of(line))]
            num_rows.update(
                {
                    " ".join(words[at : at + n])
                    for n in effective_lengths(_JOB_LENGTHS, len(words))
                    for at in range(len(words) - n + 1)
                }
            )
    _write(Path(path), ({"ngram": ngram} for ngram, count in num_rows.items() if count > most))
