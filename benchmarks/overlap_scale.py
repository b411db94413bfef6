"""Bench: the overlap job per MB of training text, per pass and per n-gram, for runs far larger.

    python -m benchmarks.overlap_scale --mb 200 600

The job runs against an emulator of GCS that takes 50 ms more for each request, on few and on more
files of training text, with a small and a large evaluation set, and in several passes. Differences
between runs are what a MB, a pass and an n-gram take; `benchmarks.overlap_estimate` computes from
them what a run of terabytes would. Results go to results/.
"""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from benchmarks import engines, overlap_scale_table, runner
from benchmarks.engine_servers import GCS_EMULATOR, gcs_client, running_gcs_emulator, upload
from benchmarks.overlap_corpus import EVALUATION_ROWS, FORMATS, Corpus
from benchmarks.results import Run
from benchmarks.runner import Bench, Found

REQUEST_S = 0.05
LENGTH = 13
PASSES = 4
_BUCKET = "bench"
_SUMMARY = "out/progress/progress_summary.json"


@dataclass(frozen=True)
class Case:
    """What a run is given: MB of training text, rows of the evaluation set, passes."""

    mb: int
    eval_rows: int
    passes: int = 1


def cases(sizes: Sequence[int], few_rows: int, many_rows: int) -> list[Case]:
    """Returns the runs, of which two each differ in one thing."""
    small, large = min(sizes), max(sizes)
    return [
        *(Case(small, few_rows), Case(small, many_rows), Case(large, many_rows)),
        Case(large, many_rows, PASSES),
    ]


def _run(argv: Sequence[str]) -> int:
    parser = runner.bench_parser("overlap_scale", "Measures what a far larger run takes.", rounds=1)
    add = parser.add_argument
    add("--mb", nargs=2, type=int, default=[200, 600], help="of training text")
    add("--eval_rows", nargs=2, type=int, default=[EVALUATION_ROWS, 100_000])
    args = parser.parse_args(argv)
    options = {"seed": args.seed, "request_s": REQUEST_S, "ngram_length": LENGTH}
    bench = Bench("overlap_scale", args, options)
    wanted = [
        case
        for case in cases(args.mb, *sorted(args.eval_rows))
        if bench.can_run(asdict(case), engines.obstacle("memory-gcs"))
    ]
    if wanted:
        bench.warm_up("the job", _measured(bench, Case(0, 10), 0))
    for number, case in bench.rounds(wanted):
        bench.keep(_measured(bench, case, number))
    return bench.end(overlap_scale_table.markdown(bench.results) if wanted else "")


def _measured(bench: Bench, case: Case, number: int) -> Run:
    corpus = Corpus(bench.args.data_dir, bench.args.seed)
    training, evaluation = corpus.training(case.mb, FORMATS[0]), corpus.evaluation(case.eval_rows)
    with ExitStack() as stack:
        folder = bench.args.data_dir / "gcs-emulator"
        folder.mkdir(exist_ok=True)
        endpoint = stack.enter_context(running_gcs_emulator(str(GCS_EMULATOR), folder))
        for path in training:
            upload(path, f"gs://{_BUCKET}/in/{path.name}", endpoint)
        upload(evaluation, f"gs://{_BUCKET}/eval/test.jsonl", endpoint)

        def command(_: Path) -> list[str]:
            job = runner.module_command(
                "benchmarks.counted_job",
                job="overlap",
                request_s=REQUEST_S,
                input_path=f"gs://{_BUCKET}/in",
                decontaminate_source=f"set=gs://{_BUCKET}/eval/test.jsonl",
                output_path=f"gs://{_BUCKET}/out",
                ngram_length=LENGTH,
                num_shards=case.passes,
                direct_num_workers=1,
            )
            return ["env", f"STORAGE_EMULATOR_HOST={endpoint}", *job]

        def check(_: Path, printed: str) -> Found:
            requests = runner.json_lines(printed)[-1]
            blob = gcs_client(endpoint).bucket(_BUCKET).blob(_SUMMARY)
            return _found(case, len(training), requests, orjson.loads(blob.download_as_bytes()))

        return bench.measured(asdict(case), number, command, check)


def _found(case: Case, num_files: int, requests: dict, summary: dict[str, Any]) -> Found:
    """Returns what a run took and did, and why it does not count."""
    counts = summary["counts"]
    if summary["stage"] != "done" or summary["num_shards"] != case.passes:
        return Found({}, f"it is {summary['stage']} after {summary['num_shards']} passes")
    did = {
        "num_files": num_files,
        "text_mb": counts["train_text_bytes"] / 1e6,
        "eval_ngrams": counts["eval_ngrams"],
        "matches": counts["matches"],
    }
    return Found(did | requests)


main = runner.program(_run)

if __name__ == "__main__":
    sys.exit(main())
