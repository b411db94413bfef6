"""Bench: training text that contains whole evaluation sets, Probeline and its peers.

    python -m benchmarks.overlap_hits --evals bundled-evals --mb 80 --rounds 3

`--evals` is a folder of evaluation sets in the format of allenai/decon, such as those bundled with
its repository: lines with `eval_key`, `question` and `answer`, .jsonl or .jsonl.gz. Every question
is planted once, with its answer, in a fifth of the documents of `overlap_texts`. The job also runs
on the same text without them: the difference is the cost of the matches. For its memory it runs on
one document with all of the text, and on an evaluation set of 200,000 rows with 10 million matches.
The contenders define a hit differently, so their documents are shown, not compared.
"""

import argparse
import gzip
import json
import os
import random
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from beam_pipeline.errors import UsageError
from beam_pipeline.overlap.results.layout import DOCUMENTS, SUMMARY
from beam_pipeline.storage.parquet import open_parquet
from benchmarks import markdown as md
from benchmarks import runner
from benchmarks.overlap_corpus import BLOCK_MB
from benchmarks.overlap_texts import Texts
from benchmarks.results import Median, Results, Run, medians
from benchmarks.runner import Bench, Found, appears_whole, call, module_command

N = 13
PLANTED, PLAIN, LONG, ROWS = "planted", "plain", "long", "rows"
_SHOWN = {
    PLANTED: "planted",
    PLAIN: "plain",
    LONG: "planted, one document",
    ROWS: "200,000 rows planted",
}
_SHARE_OF_DOCUMENTS = 5  # one in five has planted questions
_EVALS, _TRAINING = "evals", "training"
# Of ROWS: rows of 50 n-grams, several per document of 3,200 other words.
_NUM_ROWS, _ROW_WORDS, _ROWS_PER_DOCUMENT, _OTHER_WORDS = 200_000, 62, 50, 3_200


class Contender(NamedTuple):
    """A contender: its title in the table, and the variable that names its program."""

    title: str
    details: str = ""  # of the job
    program: str = ""


CONTENDERS = {
    "none": Contender("Probeline, --details=none", "none"),
    "compact": Contender("Probeline, --details=compact", "compact"),
    "decon": Contender("decon", program="DECON"),
    "corpus-assay": Contender("corpus-assay", program="CORPUS_ASSAY"),
}


# --- the corpus ---------------------------------------------------------------------------------


def read_questions(folder: Path) -> Iterator[dict[str, Any]]:
    """Yields each question of each set once, with its right answer."""
    seen = set()
    for path in sorted([*folder.glob("*.jsonl"), *folder.glob("*.jsonl.gz")]):
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as lines:
            for row in map(orjson.loads, lines):
                key = row["eval_key"], row["question"]
                if row.get("is_correct", True) and key not in seen:
                    seen.add(key)
                    yield row


def write_corpus(output: str, evals: str, mb: int, seed: int) -> None:
    """Writes the questions by set, and documents: with questions, without, and all as one."""
    folder, texts = Path(output), Texts(seed)
    for name in (_EVALS, *(f"{_TRAINING}-{text}" for text in (PLANTED, PLAIN, LONG))):
        (folder / name).mkdir(parents=True)
    questions = list(read_questions(Path(evals)))
    for name in dict.fromkeys(row["eval_key"] for row in questions):
        own = (row for row in questions if row["eval_key"] == name)
        _write(folder / _EVALS / f"{name}.jsonl", own)
    documents = [each for block in range(mb // BLOCK_MB) for each in texts.documents(block)]
    _write(folder / f"{_TRAINING}-{PLAIN}" / "train.jsonl", documents)
    targets = documents[::_SHARE_OF_DOCUMENTS]
    for at, row in enumerate(questions):
        document = targets[at % len(targets)]
        document["text"] = f"{document['text']}\n{row['question']}\n{row.get('answer', '')}\n"
    _write(folder / f"{_TRAINING}-{PLANTED}" / "train.jsonl", documents)
    one = {"id": "all", "text": "\n".join(document["text"] for document in documents)}
    _write(folder / f"{_TRAINING}-{LONG}" / "train.jsonl", [one])


def write_rows_corpus(output: str, seed: int) -> None:
    """Writes an evaluation set of many rows, and documents that contain each row once."""
    evals, training = Path(output, f"{_EVALS}-{ROWS}"), Path(output, f"{_TRAINING}-{ROWS}")
    for folder in (evals, training):
        folder.mkdir(parents=True)
    rng = random.Random(seed)
    words = [f"w{at:x}" for at in range(50_000)]
    with open(evals / "rows.jsonl", "wb") as rows, open(training / "train.jsonl", "wb") as train:
        for first in range(0, _NUM_ROWS, _ROWS_PER_DOCUMENT):
            texts = [" ".join(rng.choices(words, k=_ROW_WORDS)) for _ in range(_ROWS_PER_DOCUMENT)]
            for at, text in enumerate(texts, first):
                row = {"id": str(at), "text": text}
                rows.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
            text = "\n".join([" ".join(rng.choices(words, k=_OTHER_WORDS)), *texts])
            document = {"id": str(first), "text": text}
            train.write(orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE))


def _write(path: Path, records: Any) -> None:
    with open(path, "wb") as file:
        file.writelines(orjson.dumps(each, option=orjson.OPT_APPEND_NEWLINE) for each in records)


# --- commands and findings ----------------------------------------------------------------------


def command(name: str, corpus: Path, text: str, folder: Path) -> list[str]:
    """Returns the command line of a contender on PLANTED, PLAIN, LONG or ROWS text."""
    evals = corpus / (f"{_EVALS}-{ROWS}" if text == ROWS else _EVALS)
    training = corpus / f"{_TRAINING}-{text}"
    if details := CONTENDERS[name].details:
        sets = (f"--decontaminate_source={p.stem}={p}" for p in sorted(evals.iterdir()))
        fields = {"eval_text_field": "question", "eval_id_field": "fingerprint"}
        if text == ROWS:
            fields = {}
        flags = {"input_path": training, "output_path": folder / "out", "details": details}
        return [*module_command("beam_pipeline.overlap", **flags, **fields, ngram_length=N), *sets]
    program = os.environ[CONTENDERS[name].program]
    if name == "decon":
        flags = [f"--training-dir={training}", f"--evals-dir={evals}"]
        return [program, "detect", *flags, f"--report-output-dir={folder / 'out'}"]
    sets = [
        {"name": p.stem, "dataset": "json", "data_files": {"test": str(p)}}
        | {"splits": ["test"], "fields": ["question"]}
        for p in sorted(evals.iterdir())
    ]
    (folder / "config.yaml").write_text(json.dumps({"benchmarks": sets, "ngram": N}))
    flags = [f"--config={folder / 'config.yaml'}", f"--input={training / 'train.jsonl'}"]
    flags += [f"--out-dir={folder / 'out'}", f"--index-cache-dir={folder / 'index'}"]
    local = ["env", "HF_HUB_OFFLINE=1", f"HF_HOME={folder / 'cache'}"]
    return [*local, program, "run", *flags, "--id-key=id", "--allow-unpinned"]


def found(name: str, output: Path, printed: str) -> dict[str, float]:
    """Returns the number of documents with a hit, and of matches if reported."""
    if CONTENDERS[name].details:
        counts = orjson.loads((output / SUMMARY).read_bytes())["counts"]
        with open_parquet(str(output / DOCUMENTS)) as file:
            num_documents = file.metadata.num_rows
        return {"num_documents": num_documents, "num_matches": counts["matches"]}
    if name == "decon":
        number = re.findall(r"Contaminated documents\s+([\d,]+)", printed)[-1]
        return {"num_documents": int(number.replace(",", ""))}
    summary = orjson.loads((output / "_FINAL_SUMMARY.json").read_bytes())
    return {"num_documents": summary["total_contaminated"]}


# --- the bench ----------------------------------------------------------------------------------


class HitsBench(Bench):
    """The bench and its corpus."""

    def __init__(self, args: argparse.Namespace):
        super().__init__("overlap_hits", args, {"mb": args.mb, "seed": args.seed, "n": N})
        self._corpus = args.data_dir / f"overlap-hits-{args.seed}-{args.mb}"
        if not self._corpus.exists():
            with appears_whole(self._corpus) as being_made:
                made = [str(being_made), str(args.evals.absolute()), args.mb, args.seed]
                call("benchmarks.overlap_hits:write_corpus", *made)
        self._rows = args.data_dir / f"overlap-hits-rows-{args.seed}"
        if not self._rows.exists():
            with appears_whole(self._rows) as being_made:
                call("benchmarks.overlap_hits:write_rows_corpus", str(being_made), args.seed)
        for folder in (self._corpus, self._rows):
            runner.read_all(folder.rglob("*.jsonl"))

    def takes(self, case: dict[str, str]) -> bool:
        """Returns whether a case can run; if not, notes the reason."""
        program = CONTENDERS[case["contender"]].program
        missing = program and not shutil.which(os.environ.get(program, ""))
        return self.can_run(case, f"${program} does not name its program" if missing else None)

    def find(self, case: dict[str, str], number: int) -> Run:
        name, text = case["contender"], case["text"]
        corpus = self._rows if text == ROWS else self._corpus
        return self.measured(
            case,
            number,
            lambda folder: command(name, corpus, text, folder),
            lambda folder, printed: Found(found(name, folder / "out", printed)),
        )


def markdown(results: Results) -> str:
    """Returns the table."""
    lines = medians(results.runs)
    plain = {
        line.case["contender"]: line.figures["cpu_s"]
        for line in lines
        if line.case["text"] == PLAIN and line.figures
    }

    def per_match(line: Median) -> str:
        start = plain.get(line.case["contender"])
        if start is None or not line.figures.get("num_matches"):
            return ""
        return f"{(line.figures['cpu_s'] - start) / line.figures['num_matches'] * 1e6:.2f}"

    columns: md.Columns = {
        "contender": lambda line: CONTENDERS[line.case["contender"]].title,
        "text": lambda line: _SHOWN[line.case["text"]],
        **md.COSTS,
        "documents with a hit": md.figure("num_documents"),
        "matches": md.figure("num_matches"),
        "µs of CPU per match": lambda line: per_match(line) if line.case["text"] == PLANTED else "",
    }
    notes = [
        md.circumstances(results),
        f"{results.options['mb']} MB of generated text, n = {N} where a contender takes it; CPU, "
        "wall and memory are of the whole process tree, the index of the evaluation sets included. "
        "As one document the text has fewer matches: it counts once for an n-gram and a question.",
    ]
    if any(line.case["text"] == ROWS for line in lines):
        matches = _ROW_WORDS - N + 1
        notes.append(f"The {_NUM_ROWS:,} rows have a text of their own: {matches} matches each.")
    title = lambda case: CONTENDERS[case["contender"]].title  # noqa: E731
    notes += md.shortfalls(results, title, lambda case: f"on {_SHOWN[case['text']]} text")
    return md.page([md.results_table(columns, lines, 2, 2)], notes)


def _run(argv: Sequence[str]) -> int:
    parser = runner.bench_parser("overlap_hits", "Compares the cost of hits.")
    parser.add_argument("--evals", type=Path, required=True, help="sets in decon's format")
    parser.add_argument("--mb", type=int, default=80, help="of text, in blocks of 20")
    runner.add_choices(parser, "--contenders", CONTENDERS)
    args = parser.parse_args(argv)
    if args.mb < BLOCK_MB or args.mb % BLOCK_MB:
        raise UsageError(f"--mb={args.mb}: give a multiple of {BLOCK_MB}")
    bench = HitsBench(args)
    cases = [{"contender": name, "text": PLANTED} for name in args.contenders]
    own = [name for name in args.contenders if CONTENDERS[name].details]
    cases += [{"contender": name, "text": text} for text in (PLAIN, LONG, ROWS) for name in own]
    wanted = [case for case in cases if bench.takes(case)]
    for case in wanted[:1]:
        bench.warm_up(case["contender"], bench.find(case, 0))  # compiled code is cached
    for number, case in bench.rounds(wanted):
        bench.keep(bench.find(case, number))
    return bench.end(markdown(bench.results))


main = runner.program(_run)

if __name__ == "__main__":
    sys.exit(main())
