"""Long texts are scanned in sections, and what is found is what a scan of the whole finds."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.documents.batch import text_buffers
from beam_pipeline.overlap.ngrams import sections
from beam_pipeline.overlap.ngrams.index import build_index
from beam_pipeline.overlap.ngrams.matching import Matcher, SharedNgrams
from beam_pipeline.overlap.ngrams.postings import Postings
from beam_pipeline.overlap.ngrams.sections import count_code_points, sections_of
from beam_pipeline.overlap.ngrams.token_texts import token_texts
from beam_pipeline.overlap.ngrams.tokenizers import TOKENIZERS, Tokenizer
from tests.support.properties import num_examples

DEFAULT = TOKENIZERS["default"]
# Characters of one to four bytes; lower case that is longer, or depends on what is around it, also
# across separators that a capital sigma looks past.
PIECES = [
    *("a b ", "aΣ", ", ", "--", "世界", "ก\u0e31", "ΟΔΟΣ.Α ", "a a a a "),
    *"abΣ.' \nİé。\u2028\ud800\U0001f600\u0301-",
]
texts = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)


@contextmanager
def small_pieces(num_bytes: int, looked_at: int = 1) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sections, "_PIECE_BYTES", num_bytes)
        patch.setattr(sections, "_LOOKED_AT_BYTES", looked_at)
        yield


def shared(
    rows: list[str], training: list[str], lengths: tuple[int, ...], tokenizer: Tokenizer
) -> SharedNgrams:
    postings = token_texts(*text_buffers(rows), tokenizer)
    index = build_index([text_buffers(rows)], lengths, tokenizer)
    matcher = Matcher(index, Postings(index, postings), tokenizer)
    return matcher.shared(*text_buffers(training))


@pytest.mark.parametrize("name", TOKENIZERS)
@given(
    rows=st.lists(texts, min_size=1, max_size=3),
    training=st.lists(texts, max_size=3),
    lengths=st.sampled_from([(1,), (2, 3), (5,), (1, 13)]),
    num_bytes=st.integers(1, 30),
    looked_at=st.sampled_from([1, 7, 4096]),
)
@settings(max_examples=num_examples(150))
def test_sections_find_what_the_whole_text_has(
    name: str,
    rows: list[str],
    training: list[str],
    lengths: tuple[int, ...],
    num_bytes: int,
    looked_at: int,
) -> None:
    tokenizer, training = TOKENIZERS[name], [*training, " ".join(rows)]
    whole = shared(rows, training, lengths, tokenizer)
    with small_pieces(num_bytes, looked_at):
        found = shared(rows, training, lengths, tokenizer)
    for one, other in zip(found, whole, strict=True):
        assert np.array_equal(one, other)
    assert whole.num_ngrams >= len(whole.starts)


def test_section_size_is_bounded() -> None:
    text = "Ünï ΣΑΣ " * 20_000
    utf8, bounds = text_buffers([text])
    with small_pieces(1000, 64):
        found = list(sections_of(utf8, bounds, DEFAULT, 12))
    assert len(found) > 150
    assert max(len(section.utf8) for section in found) < 1300
    for section in found[::17]:
        assert text[section.place :].startswith(section.utf8.tobytes().decode())
    assert count_code_points(utf8) == len(text)


def test_user_tokenizer_gets_whole_texts() -> None:
    own = Tokenizer("own", function=DEFAULT.tokenize)
    with small_pieces(1):
        (section,) = sections_of(*text_buffers(["a b c d e", "f g"]), own, 1)
    assert section.first == 0 and len(section.bounds) == 3
