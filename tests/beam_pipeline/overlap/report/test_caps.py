"""Options that left something out, as the report names them."""

from collections import Counter
from typing import Any

import pytest

from beam_pipeline.overlap.job.config import DeconConfig
from beam_pipeline.overlap.job.manifest import options_of
from beam_pipeline.overlap.report.caps import Cap, caps_of

NO_COUNTS = {"degenerate_eval_rows": 0}


@pytest.mark.parametrize(
    ("given", "flags", "where"),
    [
        ({"max_document_frequency": 3}, "--max_document_frequency=3", "in more training documents"),
        ({"drop_ngrams": "a.jsonl"}, "--drop_ngrams=a.jsonl", "of training documents"),
        (
            {"max_document_frequency": 3, "drop_ngrams": ("a", "b")},
            "--max_document_frequency=3 --drop_ngrams=a --drop_ngrams=b",
            "of training documents",
        ),
    ],
)
def test_boilerplate_names_the_options_that_are_set(
    given: dict[str, Any], flags: str, where: str
) -> None:
    config = DeconConfig(input_path="c", decontaminate_source="e", output_path="o", **given)
    found = caps_of(options_of(config), NO_COUNTS, 7, Counter())
    assert found == [Cap("sets", flags, f"7 n-grams {where} not counted")]
