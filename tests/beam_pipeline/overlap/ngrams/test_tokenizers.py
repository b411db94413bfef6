"""Tokens and their ranges: the compiled implementation equals the reference."""

import re
import string
import unicodedata
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from beam_pipeline.documents.batch import text_buffers
from beam_pipeline.errors import ProbelineError, UsageError
from beam_pipeline.overlap.ngrams import tokenizers
from beam_pipeline.overlap.ngrams.token_batches import token_batches
from beam_pipeline.overlap.ngrams.token_kernels import ngram_hash, power_of, prefix_hashes, table_of
from beam_pipeline.overlap.ngrams.token_texts import tokens_of
from beam_pipeline.overlap.ngrams.tokenizers import (
    TOKENIZERS,
    UNSPACED,
    Token,
    Tokenizer,
    pieces_of,
    tokenizer_named,
)
from tests.support.properties import num_examples

DEFAULT = TOKENIZERS["default"]
# Characters that lower-case, separate or encode in their own way.
ODD = "aZ \t\n\x1c\x85\xa0\u2003\u2028\u3000.,_-~İΣσςÀßŸΑ̇K\U00010400\U0001f600\ud800\udc00ǅⅣ'"
UNSPACED_ODD = "世界ゐーｦกำ๒ຝကខ។𠀀𗀀，。「々\u3099ㄅ"  # scripts without spaces
ODD += UNSPACED_ODD
texts = st.text(st.one_of(st.sampled_from(ODD), st.characters()), max_size=60)


def original(text: str) -> list[str]:
    """The rule as it is stated: lower the whole, split, keep the empty ones."""
    return re.split(rf"[\s{re.escape(string.punctuation)}]+", text.lower())


@given(texts)
@example("")
@example(".")
@example(" a.b ")
@example("ΣΑΣ ΣΑΣ.")
@example("İİ. İ")
@settings(max_examples=num_examples(2000))
def test_default_tokens_are_lower_and_split(text: str) -> None:
    assert [token.text for token in DEFAULT.tokenize(text)] == original(text)
    for token in DEFAULT.tokenize(text):
        there = text[token.start : token.end]
        assert there.lower().replace("ς", "σ") == token.text.replace("ς", "σ")


def same(text: str, tokenizer: Tokenizer) -> None:
    plain, fast = tokenizer.tokenize(text), tokens_of(text, tokenizer)
    assert fast.starts.tolist() == [token.start for token in plain]
    assert fast.ends.tolist() == [token.end for token in plain]
    by_hash: dict[int, str] = {}
    for token, value in zip(plain, fast.hashes.tolist(), strict=True):
        assert by_hash.setdefault(value, token.text) == token.text
    assert len(by_hash) == len({token.text for token in plain})


RUNS = [*ODD, "İ世" * 20, "a世" * 9, "The Quick,  brown-fox. ", "Ünï, "]
RUNS += ["a" * 15, "B_" * 9, "[@`{" * 17, "x" * 70]
runs = st.lists(st.sampled_from(RUNS), max_size=30).map("".join)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(texts=st.lists(texts | runs, max_size=4))
@example([":\x01 \x00 \x00\x00 aaaaaaaa aaaaaaai\x00"])  # of lengths that a byte could make up for
@settings(max_examples=num_examples(500))
def test_compiled_tokens_equal_the_reference(name: str, texts: list[str]) -> None:
    """Also where a block ends in another document, or beyond the last one."""
    tokenizer = TOKENIZERS[name]
    for text in texts:
        same(text, tokenizer)
    utf8, bounds = text_buffers(texts)
    found: dict[int, list[int]] = {}
    for batch in token_batches(utf8, bounds, tokenizer):
        assert batch.prefixes.tolist() == prefix_hashes(batch.hashes).tolist()
        for at, (start, stop) in enumerate(pairwise(batch.firsts.tolist()), batch.first):
            found.setdefault(at, []).extend(batch.hashes[start:stop].tolist())
    expected = {at: tokens_of(text, tokenizer).hashes.tolist() for at, text in enumerate(texts)}
    assert found == expected


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=st.lists(st.sampled_from([*RUNS, " ", "\n", "b c", "ΟΔΟΣ d"])).map("".join))
@settings(max_examples=num_examples(200))
def test_tokens_of_pieces_equal_those_of_the_text(name: str, text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizers, "_PIECE_CHARS", 1)
        pieces = list(pieces_of(text, TOKENIZERS[name]))
        same(text, TOKENIZERS[name])
    assert all(text[start:].startswith(piece) for start, piece in pieces)
    tokens = [token for _, piece in pieces for token in TOKENIZERS[name].tokenize(piece)]
    words = [token.text for token in TOKENIZERS[name].tokenize(text)]
    assert [token.text for token in tokens] == words


def multilingual(text: str) -> list[tuple[str, int, int]]:
    """The rule as the docs state it, character by character."""
    tokens, start = [], None
    for at, char in enumerate(f"{text} "):
        is_space = char.isspace() or unicodedata.category(char)[0] == "P"
        is_space |= char in string.punctuation or unicodedata.normalize("NFKC", char) in "$+<=>^`|~"
        is_alone = not is_space and re.match(UNSPACED, char)
        if start is not None and (is_space or is_alone):
            tokens.append((text[start:at], start, at))
            start = None
        if is_alone:
            tokens.append((char, at, at + 1))
        elif not is_space and start is None:
            start = at
    return tokens


SCRIPTS = (
    *("CJK UNIFIED", "CJK COMPATIBILITY IDEOGRAPH", "CJK RADICAL", "KANGXI RADICAL", "HANGZHOU"),
    *("IDEOGRAPHIC", "VERTICAL IDEOGRAPHIC", "OLD CHINESE", "VIETNAMESE", "MASU", "HENTAIGANA"),
    *("HIRAGANA", "KATAKANA", "HALFWIDTH KATAKANA", "VERTICAL KANA", "COMBINING KATAKANA"),
    *("BOPOMOFO", "YI SYLLABLE", "TANGUT", "NUSHU", "KHITAN", "THAI", "LAO", "KHMER", "MYANMAR"),
    *("TAI LE", "NEW TAI LUE", "TAI THAM", "TAI VIET", "AHOM"),
)


def test_scripts_without_spaces() -> None:
    for code in range(0x110000):
        name, kind = unicodedata.name(chr(code), ""), unicodedata.category(chr(code))
        is_text = kind[0] in "LM" or kind == "Nl" or " RADICAL" in name
        if name:
            is_found = bool(re.match(UNSPACED, chr(code)))
            assert is_found == (is_text and name.startswith(SCRIPTS)), name


@pytest.mark.slow
def test_every_code_point_equals_the_reference() -> None:
    for name, tokenizer in TOKENIZERS.items():
        step = 4001
        for start in range(0, 0x110000, step):
            # Each between letters, so that it has a token of its own if it is one.
            text = "".join(f"x{chr(code)}y" for code in range(start, min(start + step, 0x110000)))
            if "\u03a3" not in text:
                same(text, tokenizer)
        assert table_of(tokenizer).size == 0x110000, name


def test_token_hash_covers_all_bytes_at_any_alignment() -> None:
    words = [("xyz" * 9)[:length] for length in range(1, 26)]
    words += [f"{word[:-1]}!" for word in words]  # which differ from these in the last byte
    by_word = {tokens_of(word, Tokenizer("plain", " ")).hashes[0]: word for word in words}
    assert len(by_word) == len(words)
    for shift in range(9):
        found = tokens_of(" ".join(["z" * shift, *words]), Tokenizer("plain", " ")).hashes[1:]
        assert [by_word[value] for value in found] == words
    own = Tokenizer("own", function=lambda text: [(word, 0, 0) for word in text.split()])  # type: ignore[arg-type]
    assert [by_word[value] for value in tokens_of(" ".join(words), own).hashes] == words


def ngram_hashes(hashes: np.ndarray, n: int) -> list[int]:
    prefixes = prefix_hashes(hashes)
    return [int(ngram_hash(prefixes, at, n, power_of(n))) for at in range(len(hashes) - n + 1)]


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=30), st.integers(1, 8))
@settings(max_examples=num_examples(500))
def test_ngram_hashes_are_equal_iff_ngrams_are(words: list[str], n: int) -> None:
    text = " ".join(words)
    hashes = ngram_hashes(tokens_of(text, DEFAULT).hashes, n)
    joined = [" ".join(words[at : at + n]) for at in range(len(words) - n + 1)]
    assert len(hashes) == len(joined)
    assert len(set(hashes)) == len(set(joined)) == len(set(zip(hashes, joined, strict=True)))
    assert len({ngram_hashes(np.zeros(4, np.uint64), n)[0] for n in (1, 2, 3, 4)}) == 4


def every_third_letter(text: str) -> list[tuple[str, int, int]]:
    return [(text[at], at, at + 1) for at in range(0, len(text), 3)]


def test_user_tokenizer() -> None:
    tokenizer = tokenizer_named(
        "tests.beam_pipeline.overlap.ngrams.test_tokenizers:every_third_letter"
    )
    same("abcdefgabcdefg", tokenizer)
    numpy: Any = lambda text: [["a", np.int64(0), 1]]  # noqa: E731
    assert Tokenizer("my:own", function=numpy).tokenize("a b") == [Token("a", 0, 1)]
    assert [token.text for token in tokenizer.tokenize("abcd")] == ["a", "d"]


# --- functions of the user ------------------------------------------------------------------------


def raising(error: BaseException):
    def function(text: str):
        raise error

    return function


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (raising(RuntimeError("boo\nhoo")), "with RuntimeError: boo hoo; correct"),
        (lambda text: text, "returns 'a' for a text of 3 characters"),
        (lambda text: [("a", -1, 1)], "start and end in the text"),
        (lambda text: [("a", 2, 1)], "start and end in the text"),
        (lambda text: [("a", 0, 4)], "start and end in the text"),
        (lambda text: [("b", 2, 3), ("a", 0, 1)], "in order"),
        (lambda text: [("a", 0.0, 1.0)], "returns"),
    ],
)
def test_invalid_result_of_a_user_tokenizer(function, message: str) -> None:
    with pytest.raises(ProbelineError, match=f"^--tokenizer=my:own .*{message}") as refusal:
        Tokenizer("my:own", function=function).tokenize("a b")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", ["defualt", "no.such:f", "os:nothing", "os:sep"])
def test_invalid_tokenizer(name: str) -> None:
    reason = "(is unknown|cannot be imported|not a function)"
    with pytest.raises(UsageError, match=rf"^--tokenizer={name}.* {reason}"):
        tokenizer_named(name)
