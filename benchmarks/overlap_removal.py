"""Bench: a corpus written anew without what evaluation sets share with it, beside plain scripts.

    python -m benchmarks.overlap_removal --mb 200 --rounds 3

A hundredth of the documents of `overlap_texts`, evenly over all files, has a passage of an
evaluation row. The overlap job searches the corpus once for each format, unmeasured. Its result is
given to the removal and to the peers. A run counts only if its records are those of the runs before
it with the same task; the pieces of `split` are only counted, for a peer cuts beside the borders of
tokens.
"""

import hashlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from beam_pipeline.errors import UsageError
from beam_pipeline.overlap.results.layout import DOCUMENTS
from benchmarks import ROOT, overlap_found, runner
from benchmarks import markdown as md
from benchmarks.overlap_corpus import BLOCK_MB, FORMATS
from benchmarks.overlap_texts import TINY_DOCUMENTS, Texts, write_documents, write_evaluation
from benchmarks.results import Median, Results, Run, medians
from benchmarks.runner import Bench, Found, appears_whole, call, module_command, read_all

N = 13
MODES = ("document", "split", "mask")
_EVALUATION_ROWS, _PASSAGE_WORDS, _ONE_IN = 1_000, 30, 100
_LINES = tuple(name for name in FORMATS if name != "parquet")


class Contender(NamedTuple):
    """A way to remove: what the table calls it, and what it can do."""

    title: str
    formats: tuple[str, ...] = FORMATS
    modes: tuple[str, ...] = MODES


CONTENDERS = {
    "probeline": Contender("Probeline"),
    "plain": Contender("a loop over lines", _LINES),
    "duckdb": Contender("DuckDB", ("parquet",), ("document",)),
}


@dataclass(frozen=True)
class Case:
    """What a run is given; of 0 MB, TINY_DOCUMENTS documents, which measures start-up."""

    contender: str
    mode: str
    file_format: str
    mb: int


def cases(
    contenders: Sequence[str], modes: Sequence[str], formats: Sequence[str], mb: int
) -> list[Case]:
    """Returns all cases that are wanted, the start of each contender first."""
    wanted = [
        Case(name, mode, file_format, mb)
        for file_format in formats
        for mode in modes
        for name in contenders
        if file_format in CONTENDERS[name].formats and mode in CONTENDERS[name].modes
    ]
    starts = {case.contender: replace(case, mb=0) for case in reversed(wanted)}
    return [*starts.values(), *wanted]


# --- the corpus ---------------------------------------------------------------------------------


def write_corpus(output: str, mb: int, file_format: str, seed: int) -> None:
    """Writes files of a block each, or one of TINY_DOCUMENTS, and the evaluation set."""
    folder, texts = Path(output), Texts(seed)
    (folder / "in").mkdir(parents=True)
    passages = [row.split(" ") for row in texts.evaluation(_EVALUATION_ROWS)]
    write_evaluation(folder / "quiz.jsonl", _EVALUATION_ROWS, seed)
    for block in range(mb // BLOCK_MB or 1):
        documents = texts.documents(block)[: None if mb else TINY_DOCUMENTS]
        for number, document in enumerate(documents[::_ONE_IN]):
            words = passages[(block * len(documents) + number) % len(passages)]
            text = document["text"]
            middle = text.find(" ", len(text) // 2)
            planted = " ".join(words[1 : 1 + _PASSAGE_WORDS])
            document["text"] = f"{text[:middle]} {planted} {text[middle + 1 :]}"
        write_documents(folder / f"in/train-{block:03d}.{file_format}", [documents])


def summary(folder: str) -> dict[str, Any]:
    """Returns the number of documents of a folder, their bytes, and a digest of ids and texts."""
    num_documents = text_bytes = 0
    ids, texts = (hashlib.blake2b(digest_size=8) for _ in range(2))
    for batch in overlap_found.batches(folder):
        num_documents += len(batch.ids)
        text_bytes += len(batch.utf8)
        ids.update("".join(f"{each}\n" for each in batch.ids).encode())
        texts.update(batch.utf8)
    return {
        "num_documents": num_documents,
        "text_bytes": text_bytes,
        "digest": ids.hexdigest() + texts.hexdigest(),
    }


# --- the bench ----------------------------------------------------------------------------------


def command(case: Case, corpus: Path, output: Path) -> list[str]:
    """Returns the command line of a contender."""
    if case.contender == "probeline":
        flags = {"result_path": corpus / "result", "output_path": output, "remove": case.mode}
        return module_command("beam_pipeline.overlap.remove", **flags)
    documents = corpus / "result" / DOCUMENTS
    flags = {"input_path": corpus / "in", "documents": documents, "output": output / "documents"}
    if case.contender == "duckdb":
        return module_command("benchmarks.peers.duckdb_removal", **flags)
    return module_command("benchmarks.peers.plain_removal", **flags, remove=case.mode)


class RemovalBench(Bench):
    """The bench, its corpora, and what the first run of each task left of them."""

    def __init__(self, args: Any):
        super().__init__("overlap_removal", args, {"mb": args.mb, "seed": args.seed, "n": N})
        self._sizes: dict[tuple[str, int], dict[str, Any]] = {}
        self._summaries: dict[str, dict[str, Any]] = {}  # by a digest of the files
        self._digests: dict[tuple[str, str, int], str] = {}

    def prepare(self, case: Case) -> Path:
        """Returns the folder of a corpus and its result, made if it is missing, and measures it."""
        seed = self.args.seed
        corpus = self.args.data_dir / f"overlap-removal-{seed}-{case.mb}-{case.file_format}"
        if not corpus.exists():
            with appears_whole(corpus) as being_made:
                function = "benchmarks.overlap_removal:write_corpus"
                call(function, being_made, case.mb, case.file_format, seed)
        if not (corpus / "result").exists():
            with appears_whole(corpus / "result") as being_made:
                sets = f"quiz={corpus}/quiz.jsonl"
                flags = {"input_path": corpus / "in", "output_path": being_made, "ngram_length": N}
                job = module_command("beam_pipeline.overlap", **flags, decontaminate_source=sets)
                subprocess.run(job, check=True, cwd=ROOT, capture_output=True)
        key = case.file_format, case.mb
        if key not in self._sizes:
            self._sizes[key] = call("benchmarks.overlap_removal:summary", corpus / "in")
            read_all((corpus / "in").iterdir())
        return corpus

    def remove(self, case: Case, number: int) -> Run:
        """Runs a case and checks what it wrote."""
        corpus = self.prepare(case)

        def check(folder: Path, printed: str) -> Found:
            found = self._summary(folder / "clean/documents")
            return Found({"num_documents": found["num_documents"]}, self._fault(case, found))

        run = self.measured(
            asdict(case), number, lambda folder: command(case, corpus, folder / "clean"), check
        )
        run.figures["text_mb"] = self._sizes[case.file_format, case.mb]["text_bytes"] / 1e6
        return run

    def _summary(self, folder: Path) -> dict[str, Any]:
        """Returns the summary of a folder; equal files are read once."""
        files = hashlib.blake2b()
        for path in sorted(folder.glob("*.*")):
            files.update(path.name.encode() + path.read_bytes())
        if files.hexdigest() not in self._summaries:
            found = call("benchmarks.overlap_removal:summary", folder)
            self._summaries[files.hexdigest()] = found
        return self._summaries[files.hexdigest()]

    def _fault(self, case: Case, found: dict[str, Any]) -> str | None:
        of_same = case.contender if case.mode == "split" else ""
        expected = self._digests.setdefault(
            (f"{case.mode} {of_same}", case.file_format, case.mb), found["digest"]
        )
        return None if expected == found["digest"] else "it left other records than the runs before"


def markdown(day: Sequence[Results]) -> str:
    """Returns the table of all results of a day, and what a reader must know to judge it."""
    columns: md.Columns = {
        "format": lambda line: f".{line.case['file_format']}",
        "`--remove`": lambda line: line.case["mode"],
        "by": lambda line: CONTENDERS[line.case["contender"]].title,
        "text MB": md.figure("text_mb"),
        "documents left": md.figure("num_documents"),
        **md.COSTS,
        "start-up, CPU s": md.figure("start_s", "{:.1f}"),
        "MB per CPU-second, start-up apart": md.figure("mb_per_cpu_s"),
    }
    newest = day[-1]
    notes = [
        md.circumstances(newest),
        "CPU, wall and memory are of the whole process tree; MB are of text, uncompressed. "
        f"Start-up is the same command on {TINY_DOCUMENTS} documents.",
        *(
            note
            for results in day
            for note in md.shortfalls(
                results,
                lambda case: CONTENDERS[case["contender"]].title,
                lambda case: f"on .{case['file_format']}, {case['mode']}",
            )
        ),
    ]
    lines = [line for results in day for line in _lines(results)]
    return md.page([md.results_table(columns, lines, num_named=3, num_words=3)], notes)


def _lines(results: Results) -> Iterator[Median]:
    """Yields the medians of a bench, with what the text takes beside the start of its contender."""
    every = medians(results.runs)
    starts = {line.case["contender"]: line.figures for line in every if not line.case["mb"]}
    for line in every:
        start = starts.get(line.case["contender"], {}).get("cpu_s")
        if line.case["mb"] and line.figures and start:
            line.figures["start_s"] = start
            if (own := line.figures["cpu_s"] - start) > start / 20:  # else it is mere noise
                line.figures["mb_per_cpu_s"] = line.figures["text_mb"] / own
        if line.case["mb"]:
            yield line


def _run(argv: Sequence[str]) -> int:
    parser = runner.bench_parser("overlap_removal", "Compares ways to remove what was found.")
    parser.add_argument("--mb", type=int, default=200, help="of text, in blocks of 20")
    runner.add_choices(parser, "--contenders", CONTENDERS)
    runner.add_choices(parser, "--modes", MODES)
    runner.add_choices(parser, "--formats", FORMATS)
    args = parser.parse_args(argv)
    if args.mb < BLOCK_MB or args.mb % BLOCK_MB:
        raise UsageError(f"--mb={args.mb}: give a multiple of {BLOCK_MB}")
    bench = RemovalBench(args)
    wanted = cases(args.contenders, args.modes, args.formats, args.mb)
    for case in wanted:
        bench.prepare(case)
    for case in wanted:
        if not case.mb:
            bench.warm_up(case.contender, bench.remove(case, 0))  # compiled code is cached
    for number, case in bench.rounds(wanted):
        bench.keep(bench.remove(case, number))
    return bench.end(markdown([bench.results]))


main = runner.program(_run)

if __name__ == "__main__":
    sys.exit(main())
