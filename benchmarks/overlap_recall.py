"""Bench: the recall and precision of planted evaluation rows, Probeline and its peers.

    python -m benchmarks.overlap_recall [--evals=FOLDER]

A generated corpus has evaluation rows planted in six ways, and texts that must not be found; see
`recall_corpus`. Each contender runs once as a separate process, since the outcome is deterministic.
The job also runs with each value of --min_tokens, and for several K with --drop_ngrams of those in
more than K evaluation rows. The scores go to results/, and `benchmarks.table --bench=recall` writes
the tables.
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import ROOT, recall_table, runner
from benchmarks.overlap_contenders import OUTPUT_NAME, PROBELINE, no_environment, peer_python
from benchmarks.results import Run
from benchmarks.runner import Bench, Found, module_command

SWEPT_ROWS = (2, 5, 10, 20, 50, 100)
SWEPT_TOKENS = (3, 5, 8, 13)
_DOLMA = {
    "dolma, any n-gram": "",
    "dolma, half of the n-grams": "--share=0.5",
    "dolma, looked up the other way": "--reverse",
}
TEXT_DEDUP = "text-dedup, MinHash"
PEERS = {  # environment, program, options that do not take n
    "datatrove, cut at spaces": ("datatrove", "datatrove_decontamination", ""),
    **{name: ("dolma", "dolma_dedupe", option) for name, option in _DOLMA.items()},
    "dolma, whole paragraphs": ("dolma", "dolma_dedupe", ""),
    TEXT_DEDUP: ("text_dedup", "text_dedup_minhash", ""),
}
_WITHOUT_N = ("dolma, whole paragraphs", TEXT_DEDUP)


@dataclass(frozen=True)
class Case:
    """The parameters of a run."""

    contender: str  # PROBELINE or a key of PEERS
    n: int = 0  # of a peer; 0 if it compares no n-grams; the job takes 8 and 13 at once
    preset: str = "exact"  # of the job
    max_eval_rows: int = 0  # n-grams of more rows are in --drop_ngrams; 0 drops none
    min_tokens: int = 0  # of the job
    tokenizer: str = ""  # of the job; by default that of the preset


def cases(contenders: Sequence[str]) -> list[Case]:
    wanted = []
    if PROBELINE in contenders:
        wanted = [Case(PROBELINE), Case(PROBELINE, tokenizer="drop_empty")]
        wanted.append(Case(PROBELINE, preset="precise"))
        wanted += [Case(PROBELINE, max_eval_rows=number) for number in SWEPT_ROWS]
        wanted += [Case(PROBELINE, min_tokens=number) for number in SWEPT_TOKENS]
    for name in PEERS:
        if name in contenders:
            wanted += [Case(name, n) for n in ((0,) if name in _WITHOUT_N else (8, 13))]
    return wanted


def command(case: Case, corpus: Path, output: Path) -> list[str]:
    """Returns the command line of a case on a folder of `write_corpus`."""
    text = f"--input_path={corpus / 'corpus.jsonl'}"
    if case.contender == PROBELINE:
        program = module_command(
            "beam_pipeline.overlap",
            output_path=output,
            ngram_length="8,13",
            rules="gpt3,palm,llama2",
            threshold=0.5,
            details="none",
            preset=case.preset,
            min_tokens=case.min_tokens,
            tokenizer=case.tokenizer,
        )
        if case.max_eval_rows:
            program.append(f"--drop_ngrams={_common_ngrams(case, corpus)}")
        sets = sorted((corpus / "evals").glob("*.jsonl"))
        return [*program, text, *(f"--decontaminate_source={path.stem}={path}" for path in sets)]
    environment, program, option = PEERS[case.contender]
    script = ROOT / "benchmarks" / "peers" / f"{program}.py"
    flags = [text, f"--evaluation={corpus / 'evals.jsonl'}", f"--output={output}"]
    if environment != "text_dedup":
        flags.append(f"--ngram_length={case.n}")
    return [str(peer_python(environment)), str(script), *flags, *filter(None, [option])]


def _common_ngrams(case: Case, corpus: Path) -> Path:
    return corpus / f"common-{case.max_eval_rows}.jsonl"


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = runner.bench_parser("overlap_recall", "Counts what is found of planted rows.", 1)
    add = parser.add_argument
    runner.add_choices(parser, "--contenders", [PROBELINE, *PEERS])
    add("--evals", type=Path, help="folder of evaluation sets, *.jsonl or *.jsonl.gz")
    add("--num_rows", type=int, default=300, help="of an evaluation set")
    add("--num_per_kind", type=int, default=60, help="rows planted in each way")
    add("--num_background", type=int, default=1500, help="documents with nothing planted")
    return parser.parse_args(argv)


class RecallBench(Bench):
    """The bench with its small corpus, made for each execution."""

    def __init__(self, args: argparse.Namespace):
        names = ("num_rows", "num_per_kind", "num_background", "seed")
        self._versions: dict[str, str] = {}
        options = {name: getattr(args, name) for name in names}
        told = {"own": bool(args.evals), "versions_of_peers": self._versions}
        super().__init__("recall", args, options | told)
        self._corpus = args.data_dir / "recall"
        evals = args.evals and args.evals.absolute()
        sizes = [options[name] for name in names]
        shutil.rmtree(self._corpus, ignore_errors=True)
        with runner.appears_whole(self._corpus) as being_made:
            runner.call("benchmarks.recall_corpus:write_corpus", being_made, evals, *sizes)

    def takes(self, case: Case) -> bool:
        """Returns whether a case can run; if not, notes the reason."""
        reason = None
        if case.contender != PROBELINE:
            reason = no_environment(PEERS[case.contender][0])
        return self.can_run(asdict(case), reason)

    def find(self, case: Case, number: int) -> Run:
        """Runs a case and scores its findings."""

        def check(folder: Path, _: str) -> Found:
            truth = self._corpus / "truth.json"
            found = runner.call("benchmarks.recall_scores:scores", folder / OUTPUT_NAME, truth)
            if "version" in found:
                self._versions[PEERS[case.contender][0]] = found["version"]
            return Found({}, None, {"scores": found["scores"]})

        if case.max_eval_rows:
            path, most = _common_ngrams(case, self._corpus), case.max_eval_rows
            ngrams = "benchmarks.recall_corpus:write_common_ngrams"
            runner.call(ngrams, path, self._corpus, most, "default")
        return self.measured(
            asdict(case),
            number,
            lambda folder: command(case, self._corpus, folder / OUTPUT_NAME),
            check,
        )


def _run(argv: Sequence[str]) -> int:
    bench = RecallBench(arguments(argv))
    for number, case in bench.rounds([*filter(bench.takes, cases(bench.args.contenders))]):
        bench.keep(bench.find(case, number))
    return bench.end(recall_table.markdown(bench.results))


main = runner.program(_run)

if __name__ == "__main__":
    sys.exit(main())
