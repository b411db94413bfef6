"""Bench: n-grams of evaluation sets in training text, Probeline beside its peers.

    python -m benchmarks.bench_overlap --mb 2000 --rounds 3

Four parts: `peers`, all contenders on the same files; `formats`, the job on the same text in each
format, and with four passes; `growth`, the job on more and more text with an index of millions of
n-grams. Their runs take turns, round by round, each a process tree of its own; and so does, for
each kind of run, the same on a handful of documents: that is what starting takes. What a run found
is checked before its figure counts. All runs, also those that failed, and medians go to results/.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import overlap_table
from benchmarks import results as results_files
from benchmarks.contenders import ROOT
from benchmarks.measure import last_line, measure
from benchmarks.overlap_contenders import CONTENDERS, PROBELINE, OverlapJob
from benchmarks.overlap_corpus import BLOCK_MB, EVALUATION_ROWS, FORMATS, Corpus
from benchmarks.results import OverlapRun, Results

PARTS = ("peers", "formats", "growth")
START = "start"
_DEFAULT_LENGTHS = ["13", "5,10,15"]
_PASSES = 4


@dataclass(frozen=True)
class Case:
    """What one run is given.

    Attributes:
      part: one of PARTS, or START.
      mb: of training text, about; 0 is a handful of documents, -1 the user's own.
      lengths: values of n with commas between.
      eval_rows: of the evaluation set; 0 is the user's own.
      num_shards: passes over the training text; 0 lets the job decide.
    """

    part: str
    contender: str
    mb: int
    file_format: str
    lengths: str
    eval_rows: int
    num_shards: int = 0

    @property
    def looks_for(self) -> tuple[int, str, int]:
        """What is the same for all that have to find the same."""
        return self.mb, self.lengths, self.eval_rows


def cases(args: argparse.Namespace) -> list[Case]:
    """Returns all cases that are wanted, those of the starts first."""
    wanted: list[Case] = []
    own = bool(args.corpus)
    rows = 0 if own else EVALUATION_ROWS
    for lengths in args.lengths:
        if "peers" in args.parts or own:
            for name in args.contenders:
                mb = -1 if own else min(args.peer_mb, CONTENDERS[name].max_mb or args.peer_mb)
                file_format = suffix(args.corpus[0]) if own else FORMATS[0]
                wanted.append(Case("peers", name, mb, file_format, lengths, rows))
        if "formats" in args.parts and not own:
            for file_format in args.formats:
                case = Case("formats", PROBELINE, args.mb, file_format, lengths, rows)
                wanted.append(case)
            wanted.append(Case("formats", PROBELINE, args.mb, FORMATS[0], lengths, rows, _PASSES))
    if "growth" in args.parts and not own:
        sizes = dict.fromkeys(whole_blocks(args.mb * share) for share in (0.25, 0.5, 1, 2))
        wanted += [
            Case("growth", PROBELINE, mb, FORMATS[0], args.lengths[0], args.growth_rows)
            for mb in sizes
        ]
    starts = (replace(case, part=START, mb=0, file_format=FORMATS[0]) for case in wanted)
    return [*dict.fromkeys(starts), *wanted]


def whole_blocks(mb: float) -> int:
    """Returns the size of a corpus that is nearest and can be had."""
    return max(1, round(mb / BLOCK_MB)) * BLOCK_MB


def suffix(path: Path) -> str:
    """Returns how a file's name ends, the compression included."""
    return next((name for name in FORMATS if path.name.endswith(f".{name}")), path.suffix[1:])


def obstacle(case: Case) -> str | None:
    """Says why a case cannot run, or None."""
    contender = CONTENDERS[case.contender]
    if reason := contender.obstacle():
        return reason
    num_lengths = case.lengths.count(",") + 1
    if contender.most_lengths and num_lengths > contender.most_lengths:
        return f"it takes {contender.most_lengths} value of n at a time"
    if case.file_format not in FORMATS[:3] and not contender.reads_parquet:
        return f"it reads JSON lines, not .{case.file_format}"
    return None


def main(argv: list[str] | None = None) -> int:
    args = _arguments(argv)
    console = Console(highlight=False)
    results = Results(
        bench="overlap",
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        options={
            "rounds": args.rounds,
            "mb": args.mb,
            "peer_mb": args.peer_mb,
            "growth_rows": args.growth_rows,
            "seed": args.seed,
            "own": bool(args.corpus),
        },
    )
    path = results_files.path_for(results, args.results)
    taking_part = _taking_part(cases(args), results)
    bench = _Bench(args)
    for case in taking_part:
        bench.prepare(case, console)
    for case in [case for case in taking_part if case.part == START]:
        run = bench.run(case, 0)  # unmeasured: from here on compiled code is cached
        if run.error:
            console.print(f"warm-up of {case.contender} failed: {run.error}", soft_wrap=True)
    for number in range(args.rounds):
        turn = number % max(len(taking_part), 1)
        for case in taking_part[turn:] + taking_part[:turn]:
            run = bench.run(case, number)
            results.runs.append(run)
            console.print(_line(run), soft_wrap=True)
            results_files.save(results, path)  # a bench that is cut off keeps what it has
    results.options["versions_of_peers"] = bench.versions
    results_files.save(results, path)
    console.print(overlap_table.markdown(results), markup=False, soft_wrap=True)
    console.print(
        f"written to {path.name}; python -m benchmarks.table --bench=overlap shows it",
        soft_wrap=True,
    )
    return 1 if any(run.error for run in results.runs) else 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Compares ways to find n-grams of evaluation sets.", allow_abbrev=False
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS])
    parser.add_argument("--mb", type=int, default=2000, help="of training text; growth: twice that")
    parser.add_argument("--peer_mb", type=int, default=400, help="the same where peers take part")
    parser.add_argument("--lengths", nargs="+", default=_DEFAULT_LENGTHS, metavar="N,N,…")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--contenders", nargs="+", choices=[*CONTENDERS], default=[*CONTENDERS], metavar="NAME",
        help=f"of {', '.join(CONTENDERS)}",
    )  # fmt: skip
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=[*FORMATS])
    parser.add_argument("--growth_rows", type=int, default=200_000, help="of the evaluation set")
    parser.add_argument("--corpus", nargs="+", type=Path, help="files of training text of yours")
    parser.add_argument("--evaluation", type=Path, help="the evaluation set that goes with them")
    parser.add_argument(
        "--data_dir", type=Path, default=ROOT / "build" / "benchmarks", help="data and outputs"
    )
    parser.add_argument("--results", type=Path, default=results_files.FOLDER)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    if bool(args.corpus) != bool(args.evaluation):
        parser.error("--corpus and --evaluation go together")
    # Contenders run in the repository's root.
    args.data_dir = args.data_dir.absolute()
    args.corpus = [path.absolute() for path in args.corpus or []]
    args.evaluation = args.evaluation and args.evaluation.absolute()
    args.mb, args.peer_mb = whole_blocks(args.mb), whole_blocks(args.peer_mb)
    return args


def _taking_part(wanted: list[Case], results: Results) -> list[Case]:
    """Returns the cases that can run; notes why others cannot."""
    taking_part = []
    for case in wanted:
        reason = obstacle(case)
        if reason is None:
            taking_part.append(case)
        elif case.part != START:
            results.skipped.append({**asdict(case), "reason": reason})
    return taking_part


class _Bench:
    """Runs cases; knows the corpora, their sizes, and what was found in them first."""

    def __init__(self, args: argparse.Namespace):
        self._args = args
        self._corpus = Corpus(args.data_dir, args.seed)
        self._sizes: dict[tuple[Path, ...], dict[str, int]] = {}
        self._digests: dict[tuple[int, str, int], str] = {}
        self.versions: dict[str, str] = {}

    def prepare(self, case: Case, console: Console) -> None:
        """Makes what a case reads, and measures it."""
        training, _ = self._files(case)
        if training not in self._sizes:
            self._sizes[training] = size = _asked("size", *training)  # reads all: cached from now
            mb, format_ = size["text_bytes"] / 1e6, case.file_format
            console.print(f"{mb:,.1f} MB of text in {size['num_texts']:,} documents, {format_}")

    def _files(self, case: Case) -> tuple[tuple[Path, ...], Path]:
        evaluation = self._args.evaluation
        if case.eval_rows:
            evaluation = self._corpus.evaluation(case.eval_rows)
        if case.mb < 0:
            return tuple(self._args.corpus), evaluation
        return tuple(self._corpus.training(case.mb, case.file_format)), evaluation

    def run(self, case: Case, number: int) -> OverlapRun:
        """Runs a case, checks what was found and removes it."""
        training, evaluation = self._files(case)
        size = self._sizes[training]
        load = os.getloadavg()[0]
        with tempfile.TemporaryDirectory(
            prefix=f"{case.contender}-", dir=self._args.data_dir
        ) as folder:
            lengths = [int(n) for n in case.lengths.split(",")]
            job = OverlapJob(training, evaluation, lengths, Path(folder), case.num_shards)
            with open(Path(folder) / "log", "w+", encoding="utf-8", errors="replace") as log:
                usage = measure(CONTENDERS[case.contender].command(job), log, cwd=ROOT)
                log.seek(0)
                said = log.read()
            found: dict[str, Any] = {}
            if usage.exit_code:
                error = f"exit code {usage.exit_code}: {last_line(said)}"
                error = error.replace(str(self._args.data_dir), "DATA").replace(str(ROOT), "ROOT")
            else:
                found = _asked("ngrams", job.output, evaluation)
                error = self._fault(case, found, size)
        if "version" in found:
            self.versions[case.contender] = found["version"]
        figures = {
            "text_mb": round(size["text_bytes"] / 1e6, 3),
            "wall_s": round(usage.wall_s, 3),
            "cpu_s": round(usage.cpu_s, 3),
            "peak_mib": round(usage.peak_mib, 1),
        }
        names = ("num_documents", "num_ngrams", "num_passes", "num_indexed")
        figures |= {name: found[name] for name in names if name in found}
        digest = found.get("digest")
        return OverlapRun(asdict(case), number, round(load, 2), figures, error, digest)

    def _fault(self, case: Case, found: dict[str, Any], size: dict[str, int]) -> str | None:
        """Says what is wrong with what was found, or None."""
        # Of a corpus of one's own a peer without a digest may leave out texts that are empty.
        must_read_all = case.mb >= 0 or "digest" in found
        if must_read_all and found["num_read"] != size["num_texts"]:
            return f"it read {found['num_read']:,} texts, not {size['num_texts']:,}"
        if "digest" not in found:
            return None
        if self._digests.setdefault(case.looks_for, found["digest"]) != found["digest"]:
            return "it found other n-grams than the runs before"
        return None


def _asked(*question: str | Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.overlap_found", *map(str, question)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{question[0]}: {last_line(done.stderr)}")
    return json.loads(done.stdout)


def _line(run: OverlapRun) -> str:
    case, figures = run.case, run.figures
    speed = figures["text_mb"] / figures["cpu_s"]
    text = f"{speed:8.2f} MB/CPU s {figures['cpu_s']:8.2f} CPU s {figures['wall_s']:8.2f} wall s"
    what = f"{case['part']:8}{case['contender']:16}n={case['lengths']:8}{case['file_format']:10}"
    end = f"  FAILED: {run.error}" if run.error else ""
    return f"round {run.round}  {what}{case['mb']:>6} MB{text} {figures['peak_mib']:8,.0f} MiB{end}"


if __name__ == "__main__":
    sys.exit(main())
