"""The names of an overlap run's files, relative to its output folder.

A run can resume from the files below WORK_FOLDER. All others are written at the end; a run that
starts from scratch removes them.
"""

from beam_pipeline.overlap.results.rules import PUBLISHED, THRESHOLD

SUCCESS_NAME = ".SUCCESS"
STATS = "stats/overlap_stats.jsonl"
STATS_BY_TRAIN_PATH = "stats/overlap_stats_by_train_path.jsonl"
DETAILS = "stats/overlap_details.jsonl.gz"
MATCHES = "stats/overlap_matches.parquet"
DOCUMENTS = "stats/overlap_documents.parquet"
TRAIN_FILES = "stats/overlap_train_files.parquet"
EVAL_TOKENS = "stats/overlap_eval_tokens.parquet"
NGRAMS = "stats/overlap_ngrams.jsonl.gz"
COVERAGE = "stats/overlap_coverage.jsonl"
BOILERPLATE = "stats/overlap_boilerplate.jsonl"
FIELD_HITS = "stats/overlap_fields.jsonl"
RULES = "stats/overlap_rules.jsonl"
VERDICTS = "stats/overlap_verdicts.jsonl"
NOT_LOOKED_UP = "stats/overlap_not_looked_up.jsonl"
TRAIN_TEXTS = "stats/overlap_train_texts.jsonl.gz"
EVAL_TEXTS = "stats/overlap_eval_texts.jsonl.gz"
DETAILS_LEFT_OUT = "stats/overlap_details_left_out.jsonl"
REPORT = "stats/report.json"
SUMMARY = "progress/progress_summary.json"
INPUT_FILES = "progress/input_files.jsonl"
DEAD_LETTER_FOLDER = "dead_letter"
DEAD_LETTERS = f"{DEAD_LETTER_FOLDER}/dead_letter_00000-of-00001.parquet"
REMOVAL_MANIFEST = "removal_manifest.json"  # in the output of a removal
CLEAN_FOLDER = "clean"
RULES_FOLDER = "rules"
WORK_FOLDER = "tmp/work"

# The names of our files, by folder. Evaluation sets may have any name.
PATTERNS = {
    "stats": r"overlap_(stats|stats_by_train_path|details_left_out|coverage|rules|fields)\.jsonl"
    r"|overlap_(boilerplate|verdicts|not_looked_up)\.jsonl"
    r"|overlap_(details|ngrams|(train|eval)_texts)\.jsonl\.gz"
    r"|overlap_(matches|documents|train_files|eval_tokens)\.parquet|report\.json",
    CLEAN_FOLDER: r".+\.jsonl",
    **{
        f"{RULES_FOLDER}/{name}": r".+\.(clean|between|dirty)\.jsonl"
        for name in (*PUBLISHED, THRESHOLD)
    },
    DEAD_LETTER_FOLDER: r"dead_letter_\d+-of-\d+\.parquet",
    "progress": r"progress-\d+(-\d+)?(-pass-\d+)?\.jsonl|progress_summary\.json"
    r"|input_files\.jsonl",
    "tmp": r"overlap_instances-\d+-of-\d+\.jsonl\.gz",
}


def clean_list_names(datasets: list[str], lengths: tuple[int, ...]) -> list[str]:
    """Returns the names of the lists of clean rows, by set and, if there are several, by n."""
    by_length = [f"-n{n}" for n in lengths] if len(lengths) > 1 else []
    return [f"{dataset}{which}.jsonl" for dataset in datasets for which in ("", *by_length)]


def rule_list_name(rule: str, dataset: str, verdict: str) -> str:
    """Returns the name of the list of a set's rows with a verdict by a rule."""
    return f"{RULES_FOLDER}/{rule}/{dataset}.{verdict}.jsonl"
