"""What a page shows of a text: its pieces."""

import itertools
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.overlap.report.passages import WHOLE_CHARS, passages
from beam_pipeline.overlap.results.row_overlaps import merge_spans


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted), max_size=30))
def test_merged_ranges_cover_the_same_places(spans: list[tuple[int, int]]) -> None:
    result = merge_spans(spans)
    places = {place for start, end in spans for place in range(start, end)}
    assert {place for start, end in result for place in range(start, end)} == places
    assert all(one[1] < other[0] for one, other in itertools.pairwise(result))


@given(st.data())
def test_passages_are_the_text_in_order(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([0, 10, WHOLE_CHARS, WHOLE_CHARS + 1, 5_000, 20_000]))
    random = Random(data.draw(st.integers(0, 9)))
    text = "".join(random.choices("ab \u0301\u200d\U0001f600", k=size))
    ends = st.tuples(st.integers(0, size), st.sampled_from([1, 20, 300, 3_000]))
    spans = merge_spans((s, min(size, s + n)) for s, n in data.draw(st.lists(ends, max_size=20)))
    shown, _ = passages(text, spans)
    at, shared = 0, set()
    for piece in shown:
        assert bool(piece.text) != bool(piece.num_omitted)
        assert text[at : at + len(piece.text)] == piece.text
        places = range(at, at + len(piece.text))
        if piece.is_shared:
            shared.update(places)
        else:
            assert not any(start < at + len(piece.text) and at < end for start, end in spans) or (
                piece.num_omitted
            )
        at += len(piece.text) + piece.num_omitted
    assert at == size
    assert sum(len(piece.text) for piece in shown) <= max(WHOLE_CHARS, 6 * 1_700)
    covered = {place for start, end in spans for place in range(start, end)}
    assert shared <= covered and (size > WHOLE_CHARS or shared == covered)
    assert bool(shared) == bool(covered)


def test_no_character_and_no_word_is_torn() -> None:
    text = "a\u0301" * 5_000
    # A window would begin and end within a character.
    gap, before, _, after, _ = passages(text, [(4_001, 4_011)]).pieces
    assert gap.num_omitted and before.text.startswith("a") and after.text.endswith("\u0301")
    words = "seven letters " * 500
    before, first, *_ = passages(words, [(3_010, 3_020)]).pieces
    assert before.num_omitted and first.text.startswith(("seven", "letters"))
