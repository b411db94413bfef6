"""Small outputs of the overlap job, and their reports."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

from beam_pipeline.overlap.__main__ import main as run_job
from beam_pipeline.overlap.report import __main__ as report
from beam_pipeline.overlap.report.contents import Report, contents
from beam_pipeline.overlap.report.instances import Instance, read_instances
from beam_pipeline.overlap.report.output import Output
from tests.support.overlap_jobs import write_lines

Texts = Sequence[tuple[str | None, str]]  # ids and texts of a file
_WORDS = [f"{one}{two}" for one in "bdfgklmnprst" for two in ("a", "e", "i", "o", "um", "ir")]
PLANET = "Which planet has the largest moon of all, and who saw it first?"
RTL = "ما هي عاصمة فرنسا وما هو أكبر نهر يمر بها"
COMBINING = "Cafe\u0301 de\u0301ja\u0300 vu in the old town of Kraków by night"
RIGHTS = "all rights reserved"


def filler(num_words: int = 40, seed: int = 0) -> str:
    """Returns meaningless words; texts of different seeds hardly share an n-gram."""
    return " ".join(Random(f"filler {seed}").choices(_WORDS, k=num_words))


SETS: dict[str, Texts] = {
    "space": [
        ("s0", PLANET),
        ("s1", f"{filler(12, 1)} {RIGHTS}"),
        ("s2", "red hot planet"),
        ("s3", RTL),
    ],
    "town": [("t0", COMBINING), ("t1", filler(9, 2))],
    "clean": [("c0", filler(30, 3)), ("c1", filler(30, 4))],
}
TRAINING: dict[str, Texts] = {
    "part-0.jsonl": [
        ("d0", f"{filler(30, 5)} {RIGHTS}"),
        (None, f"{filler(20, 6)} WHICH planet -- has the largest moon, they ask. {filler(20, 7)}"),
        ("d2", f"A red hot planet. {RTL}"),
    ],
    "part-1.jsonl": [
        ("e0", f"{filler(5, 8)} {COMBINING} {filler(5, 9)} {RIGHTS}"),
        ("e1", f"Who asks which planet has the largest moon? {filler(5, 10)} {RIGHTS}"),
    ],
}


def run(
    folder: Path, sets: Mapping[str, Texts], training: Mapping[str, Texts], *flags: str
) -> Path:
    """Writes evaluation sets and training files, runs the job at n of 3 and 5; returns its output.

    A training file also has a line that is not JSON.
    """
    paths = {f"eval/{number}/test.jsonl": texts for number, texts in enumerate(sets.values())}
    paths |= {f"corpus/{name}": texts for name, texts in training.items()}
    for name, texts in paths.items():
        records = [{"text": text} | ({} if id is None else {"id": id}) for id, text in texts]
        write_lines(folder / name, *records)
    (folder / "corpus/bad.jsonl").write_text("{\n")
    sources = [f"--decontaminate_source={name}={folder}/eval/{i}" for i, name in enumerate(sets)]
    argv = [f"--input_path={folder}/corpus", "--ngram_length=3,5", *sources, *flags]
    assert run_job([*argv, f"--output_path={folder}/output"]) == 0
    return folder / "output"


def page_of(output: Path, *flags: str) -> Path:
    """Writes the report of an output beside it; returns the page."""
    page = output.with_name("report.html")
    assert report.main([str(output), f"--html={page}", *flags]) == 0
    return page


def contents_of(output: Path) -> Report:
    """Returns the figures of an output at n of 3 and 5, computed from its result files."""
    return contents(Output(str(output)), [3, 5])


def instances_of(output: Path, details: str = "full", count: int = 50) -> list[Instance]:
    """Returns the first rows of a report with their documents."""
    rows = contents_of(output).rows[:count]
    return read_instances(Output(str(output)), rows, details, lambda _: None)
