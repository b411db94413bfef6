"""Bench: n-grams of evaluation sets in training text, Probeline and its peers.

    python -m benchmarks.bench_overlap --mb 2000 --rounds 3

Three parts: `peers`, all contenders on the same files; `formats`, the job on the same text in each
format, and with four passes; `growth`, the job on more and more text with an index of millions of
n-grams. Their runs are interleaved, round by round, each a separate process tree; each kind of run
also runs on a few documents, which measures start-up. A run counts only if it found the same
n-grams as the others. All runs, including failed ones, and medians go to results/.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from beam_pipeline.errors import UsageError
from benchmarks import overlap_table, runner
from benchmarks.overlap_contenders import CONTENDERS, PROBELINE, OverlapJob, command, obstacle
from benchmarks.overlap_corpus import BLOCK_MB, EVALUATION_ROWS, FORMATS, Corpus
from benchmarks.results import Run
from benchmarks.runner import Bench, Found

PARTS = ("peers", "formats", "growth")
START = "start"
_DEFAULT_LENGTHS = ["13", "5,10,15"]
_PASSES = 4
_COUNTS = ("num_documents", "num_ngrams", "num_passes", "num_indexed")


@dataclass(frozen=True)
class Case:
    """The parameters of a run."""

    part: str  # one of PARTS, or START
    contender: str
    mb: int  # approximate training text; 0 is a few documents, -1 the user's own
    file_format: str
    lengths: str  # values of n, separated by commas
    eval_rows: int  # 0 is the user's own evaluation set
    num_shards: int = 0  # passes over the training text; 0 lets the job decide

    @property
    def task(self) -> tuple[int, str, int]:
        """The key of runs that must find the same n-grams."""
        return self.mb, self.lengths, self.eval_rows


def cases(args: argparse.Namespace) -> list[Case]:
    """Returns all requested cases, start-up first."""
    wanted: list[Case] = []
    own = bool(args.corpus)
    rows = 0 if own else EVALUATION_ROWS
    for lengths in args.lengths:
        if "peers" in args.parts or own:
            for name in args.contenders:
                mb = -1 if own else args.peer_mb
                file_format = suffix(args.corpus[0]) if own else FORMATS[0]
                wanted.append(Case("peers", name, mb, file_format, lengths, rows))
        if "formats" in args.parts and not own:
            first, *others = (
                Case("formats", PROBELINE, args.mb, file_format, lengths, rows)
                for file_format in (FORMATS[0], *args.formats)
            )
            wanted += [*others, replace(first, num_shards=_PASSES)]
    if "growth" in args.parts and not own:
        sizes = dict.fromkeys(whole_blocks(args.mb * share) for share in (0.25, 0.5, 1, 2))
        wanted += [
            Case("growth", PROBELINE, mb, FORMATS[0], args.lengths[0], args.growth_rows)
            for mb in sizes
        ]
    starts = (replace(case, part=START, mb=0, file_format=FORMATS[0]) for case in wanted)
    return [*dict.fromkeys(starts), *wanted]


def whole_blocks(mb: float) -> int:
    """Returns the nearest possible size of a corpus."""
    return max(1, round(mb / BLOCK_MB)) * BLOCK_MB


def suffix(path: Path) -> str:
    """Returns the extension of a file's name, including compression."""
    return next((name for name in FORMATS if path.name.endswith(f".{name}")), path.suffix[1:])


def _run(argv: Sequence[str]) -> int:
    bench = OverlapBench(arguments(argv))
    wanted = [case for case in cases(bench.args) if bench.takes(case)]
    for case in wanted:
        bench.prepare(case)
    for case in [case for case in wanted if case.part == START]:
        bench.warm_up(case.contender, bench.find(case, 0))  # from here on compiled code is cached
    for number, case in bench.rounds(wanted):
        bench.keep(bench.find(case, number))
    return bench.end(overlap_table.markdown(bench.results))


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = runner.bench_parser("bench_overlap", "Compares ways to find n-grams.")
    add = parser.add_argument
    add("--parts", nargs="+", choices=PARTS, default=[*PARTS])
    add("--mb", type=int, default=2000, help="of training text; growth: twice that")
    add("--peer_mb", type=int, default=400, help="the same where peers take part")
    add("--lengths", nargs="+", default=_DEFAULT_LENGTHS, metavar="N,N,…")
    runner.add_choices(parser, "--contenders", CONTENDERS)
    add("--formats", nargs="+", choices=FORMATS, default=[*FORMATS])
    add("--growth_rows", type=int, default=200_000, help="of the evaluation set")
    add("--corpus", nargs="+", type=Path, help="your own files of training text")
    add("--evaluation", type=Path, help="the evaluation set that goes with them")
    args = parser.parse_args(argv)
    if bool(args.corpus) != bool(args.evaluation):
        raise UsageError("--corpus and --evaluation go together")
    # Contenders run in the repository's root.
    args.corpus = [path.absolute() for path in args.corpus or []]
    args.evaluation = args.evaluation and args.evaluation.absolute()
    args.mb, args.peer_mb = whole_blocks(args.mb), whole_blocks(args.peer_mb)
    return args


class OverlapBench(Bench):
    """The bench with its corpora, their sizes, and the first findings."""

    def __init__(self, args: argparse.Namespace):
        options = {name: getattr(args, name) for name in ("mb", "peer_mb", "growth_rows", "seed")}
        self._versions: dict[str, str] = {}
        options |= {"own": bool(args.corpus), "versions_of_peers": self._versions}
        super().__init__("overlap", args, options)
        self._corpus = Corpus(args.data_dir, args.seed)
        self._sizes: dict[tuple[Path, ...], dict[str, int]] = {}
        self._digests: dict[tuple[int, str, int], str] = {}

    def takes(self, case: Case) -> bool:
        """Returns whether a case can run; if not, notes the reason for it and its start-up."""
        num_lengths = case.lengths.count(",") + 1
        reason = obstacle(case.contender, case.file_format, num_lengths)
        return reason is None if case.part == START else self.can_run(asdict(case), reason)

    def prepare(self, case: Case) -> None:
        """Makes a case's input and measures it."""
        training, _ = self._files(case)
        if training not in self._sizes:  # `size` reads all files: from now on they are cached
            size = runner.call("benchmarks.overlap_found:size", [str(path) for path in training])
            self._sizes[training] = size
            mb = size["text_bytes"] / 1e6
            self.say(f"{mb:,.1f} MB of text in {size['num_texts']:,} documents, {case.file_format}")

    def _files(self, case: Case) -> tuple[tuple[Path, ...], Path]:
        evaluation = self.args.evaluation
        if case.eval_rows:
            evaluation = self._corpus.evaluation(case.eval_rows)
        if case.mb < 0:
            return tuple(self.args.corpus), evaluation
        return tuple(self._corpus.training(case.mb, case.file_format)), evaluation

    def find(self, case: Case, number: int) -> Run:
        """Runs a case and checks its findings."""
        training, evaluation = self._files(case)
        size = self._sizes[training]

        def job(folder: Path) -> OverlapJob:
            lengths = [int(n) for n in case.lengths.split(",")]
            return OverlapJob(training, evaluation, lengths, folder, case.num_shards)

        def check(folder: Path, printed: str) -> Found:
            found = runner.call("benchmarks.overlap_found:ngrams", job(folder).output, evaluation)
            if "version" in found:
                self._versions[case.contender] = found["version"]
            figures = {name: found[name] for name in _COUNTS if name in found}
            return Found(figures, self.fault(case, found, size), {"digest": found.get("digest")})

        run = self.measured(
            asdict(case), number, lambda folder: command(case.contender, job(folder)), check
        )
        run.figures["text_mb"] = round(size["text_bytes"] / 1e6, 3)
        return run

    def fault(self, case: Case, found: dict[str, Any], size: dict[str, int]) -> str | None:
        """Returns the fault of the findings, or None."""
        # A peer without a digest may skip the empty texts of a user's corpus.
        must_read_all = case.mb >= 0 or "digest" in found
        if must_read_all and found["num_read"] != size["num_texts"]:
            return f"it read {found['num_read']:,} texts, not {size['num_texts']:,}"
        if "digest" not in found:
            return None
        if self._digests.setdefault(case.task, found["digest"]) != found["digest"]:
            return "it found other n-grams than the runs before"
        return None


main = runner.program(_run)

if __name__ == "__main__":
    sys.exit(main())
