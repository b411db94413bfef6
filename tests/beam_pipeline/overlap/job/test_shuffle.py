"""What goes through a shuffle, and what a worker holds: little, however much is scanned."""

import json
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apache_beam as beam
import numpy as np
import pytest

from beam_pipeline.overlap.__main__ import main
from beam_pipeline.overlap.job import pipeline as overlap_pipeline
from tests.support.peak_memory import peak_memory

_shuffled: list[bytes] = []


def weigh(element: Any) -> Any:
    _shuffled.append(repr(element).encode("utf-8", "surrogatepass"))
    return element


class Weighed(beam.PTransform):
    """A shuffle that weighs what goes into it."""

    def __init__(self, shuffle: type[beam.PTransform]):
        super().__init__()
        self._shuffle = shuffle

    def expand(self, pcoll):
        return pcoll | beam.Map(weigh) | self._shuffle()


@pytest.fixture
def weighed(monkeypatch) -> None:
    shuffles = {name: partial(Weighed, getattr(beam, name)) for name in ("GroupByKey", "Reshuffle")}
    monkeypatch.setattr(overlap_pipeline, "beam", SimpleNamespace(**vars(beam) | shuffles))


def scan(folder: Path, words_of_a_text: int) -> int:
    """Runs a job whose texts have so many words, of which some are shared; returns the bytes."""
    rng = np.random.default_rng(0)
    (folder / "train").mkdir(parents=True)
    (folder / "eval" / "quiz").mkdir(parents=True)
    for number in range(3):
        with open(folder / "train" / f"{number}.jsonl", "w") as file:
            for _ in range(100):
                words = " ".join(
                    f"secret{word}" for word in rng.integers(0, 10**9, words_of_a_text)
                )
                file.write(json.dumps({"text": f"one two three four five {words}"}) + "\n")
    (folder / "eval" / "quiz" / "x.jsonl").write_text('{"text": "One, two, three, four, five."}\n')
    _shuffled.clear()
    flags = [f"--input_path={folder / 'train'}", f"--decontaminate_source={folder / 'eval/quiz'}"]
    assert main([*flags, f"--output_path={folder / 'out'}", "--ngram_length=3"]) == 0
    return sum(map(len, _shuffled))


@pytest.mark.slow
def test_no_training_text_goes_through_a_shuffle(weighed: None, tmp_path: Path) -> None:
    little = scan(tmp_path / "little", 10)
    assert little > 0
    much = scan(tmp_path / "much!!", 5000)
    assert not any(b"secret" in data or b"one two three" in data for data in _shuffled)
    assert abs(much - little) < 200  # numbers of more digits
    sizes = [path.stat().st_size for path in tmp_path.glob("*/train/*")]
    assert max(sizes) > 5_000_000 and little < 20_000


# --- memory -------------------------------------------------------------------------------------


def peak_mib(folder: Path, output: str) -> float:
    """Returns the peak memory of a job over what lies in a folder."""
    flags = [
        f"--input_path={folder / 'train'}",
        f"--decontaminate_source={folder / 'eval' / 'quiz'}",
        f"--output_path={folder / output}",
        "--ngram_length=5,13",
    ]
    return peak_memory([sys.executable, "-m", "beam_pipeline.overlap", *flags])


@pytest.mark.slow
def test_memory_does_not_grow_with_the_training_data(tmp_path: Path) -> None:
    """0.4 GB beside millions of n-grams, with some near-duplicates of evaluation rows."""
    rng = np.random.default_rng(1)
    words = np.array([f"word{number}" for number in range(50_000)])
    (tmp_path / "eval" / "quiz").mkdir(parents=True)
    (tmp_path / "train").mkdir()
    rows = [" ".join(words[rng.integers(0, 50_000, 60)]) for _ in range(30_000)]
    with open(tmp_path / "eval" / "quiz" / "x.jsonl", "w") as file:
        file.writelines(json.dumps({"id": at, "text": row}) + "\n" for at, row in enumerate(rows))
    texts = [" ".join(words[rng.integers(0, 50_000, 1000)]) for _ in range(8_000)]
    texts[::100] = [f"{text} {row}" for text, row in zip(texts[::100], rows, strict=False)]
    block = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (tmp_path / "train" / "0.jsonl").write_text(block * 2)
    small = peak_mib(tmp_path, "small")
    for number in range(1, 4):
        (tmp_path / "train" / f"{number}.jsonl").write_text(block * 2)
    total = sum(path.stat().st_size for path in (tmp_path / "train").iterdir())
    assert total > 4e8
    large = peak_mib(tmp_path, "large")
    assert large < small + 200 and large < 1200, (small, large)
    summary = json.loads((tmp_path / "large" / "progress" / "progress_summary.json").read_text())
    assert summary["counts"]["eval_ngrams"] > 2e6
    assert summary["counts"]["matches"] > 50_000
