"""The options of an overlap run: all flags of the job, as fields of two dataclasses.

`DeconConfig`, from Python or a command line, checks every value on construction. Fields are named
like the flags, except n: `--ngram_length`, in Python `ngram=NGramConfig(15)`. Only `parse` imports
Beam, which constructing a step does not need.
"""

import argparse
import warnings
from collections.abc import Sequence
from dataclasses import Field, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from beam_pipeline.cli.flags import (
    Once,
    OneLineParser,
    check_flags,
    flag,
    flags_of,
    from_flags,
    job_parser,
    several,
)
from beam_pipeline.errors import UsageError
from beam_pipeline.overlap.evaluation_sources import evaluation_sources, name_with_field
from beam_pipeline.overlap.ngrams.tokenizers import MULTILINGUAL, TOKENIZERS, tokenizer_named
from beam_pipeline.overlap.removal.options import NO_REMOVAL, RemovalConfig, check_cut
from beam_pipeline.overlap.results.layout import clean_list_names
from beam_pipeline.overlap.results.rules import NO_RULES, PUBLISHED, Rule, rules_of
from beam_pipeline.storage.files import check_path

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

MAX_N = 2**31 - 1  # n is an int32 column of the output
_MAX_COUNT = 2**63 - 1
# For samples_*.jsonl of lm-evaluation-harness; a doc_id is unique only within a task.
_LM_EVAL_TEXTS, _LM_EVAL_ID = ("question", "target"), "doc_hash"


class Preset(NamedTuple):
    """What counts as overlap, unless a flag says otherwise; 0 is no limit."""

    tokenizer: str
    max_eval_rows: int = 0  # n-grams of more evaluation rows are boilerplate
    max_document_share: float = 0.0  # as are n-grams of a larger share of the training documents
    # Whether a row of fewer than SHORT_TOKENS tokens contaminates a document by itself.
    short_rows_contaminate: bool = True


PRESETS = {
    "exact": Preset("default"),
    "precise": Preset(MULTILINGUAL, 20, 0.001, short_rows_contaminate=False),
}

# Fields of marin's classes, accepted without effect.
_WITHOUT_EFFECT = (
    *("stride", "overlap_threshold"),
    *("attribute_name", "estimated_doc_count", "false_positive_rate", "mode"),
)


def _warn_without_effect(config: Any) -> None:
    given = [name for name in _WITHOUT_EFFECT if getattr(config, name, None)]
    if given:
        values = ", ".join(f"{name}={getattr(config, name)}" for name in given)
        message = f"{values} has no effect: every n-gram is compared, and every overlap reported"
        warnings.warn(message, UserWarning, stacklevel=4)


def _path_of(given: Any) -> Any:
    """Returns the output path of a step or of its config, and other values unchanged.

    For a named output of a step, returns the path of that file or folder.
    """
    if isinstance(path := _path_of(step) if (step := getattr(given, "step", None)) else None, str):
        name = getattr(given, "name", None)
        return f"{path.rstrip('/')}/{name}" if name else path
    for owner in (given, getattr(given, "config", None)):
        if isinstance(path := getattr(owner, "output_path", None), str):
            return path
    return given


@dataclass(frozen=True)
class NGramConfig:
    """The lengths of the n-grams to compare.

    Args:
      ngram_length: n in tokens, or several values of n.
      stride: has no effect.
      overlap_threshold: has no effect.

    Raises:
      UsageError: a length is not between 1 and 2**31 - 1.

    Example:

        NGramConfig([10, 15]).lengths  # (10, 15)
    """

    ngram_length: int | Sequence[int] = flag(
        "Tokens of an n-gram; may be repeated, or a list with commas. An evaluation row of fewer "
        "tokens is one n-gram.",
        15,
        limits=(1, MAX_N),
        action="append",
        group="n-grams",
    )
    stride: int = 0
    overlap_threshold: float = 0.0

    def __post_init__(self) -> None:
        check_flags(self)
        _warn_without_effect(self)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The distinct values of n, ascending."""
        return tuple(sorted(set(several(self.ngram_length))))


@dataclass(frozen=True, kw_only=True)
class DeconConfig:
    """The options of a run; `python -m beam_pipeline.overlap --help` describes them.

    Args:
      removal: what happens to contaminated documents, in `remove_output`.
      attribute_name: has no effect.
      estimated_doc_count: has no effect.
      false_positive_rate: has no effect.
      mode: has no effect.

    Raises:
      UsageError: a value is not allowed.

    Example:

        DeconConfig(
            input_path="gs://bucket/corpus",
            decontaminate_source=["gs://bucket/eval/mmlu", "gsm8k=gs://bucket/gsm8k/test.jsonl"],
            output_path="gs://bucket/overlap",
            ngram=NGramConfig([10, 15]),
        )
    """

    input_path: str | Sequence[str] = flag(
        "Folder, glob or file of training documents: JSON lines or JSON, plain or "
        "compressed, or Parquet; may be repeated.",
        action="append",
        group="input",
        affects="",
    )
    decontaminate_source: str | Sequence[str] = flag(
        "Evaluation set: PATH as in --input_path, named by its folder, or NAME=PATH; may be "
        "repeated.",
        action="append",
        group="input",
        affects="",
    )
    output_path: str = flag("Folder of the results.", group="output", affects="")
    preset: str = flag(
        "What counts: exact, every shared n-gram; or precise, without boilerplate, and documents "
        "not for the sake of short rows alone.",
        "exact",
        choices=tuple(PRESETS),
        group="n-grams",
    )
    ngram: NGramConfig = NGramConfig()
    tokenizer: str = flag(
        f"How texts become tokens: {', '.join(TOKENIZERS)}, or a Python function as "
        "package.module:function, which is code that runs on every text. By default that of "
        f"--preset: {', '.join(f'{preset.tokenizer} for {n}' for n, preset in PRESETS.items())}.",
        "",
        group="n-grams",
    )
    text_field: str = flag(
        "Field of a document that holds its text, as in --eval_text_field: prompt,response, or "
        "messages[role=user].content.",
        "text",
        group="input",
        affects="matches",
    )
    id_field: str = flag(
        "Field of a document that holds its id.", "id", group="input", affects="matches"
    )
    eval_text_field: str | Sequence[str] = flag(
        "Field of an evaluation row that holds its text, several with a comma between: "
        "doc.question is a field of an object. By default --text_field.",
        (),
        action="append",
        group="input",
    )
    eval_id_field: str = flag(
        "Field of an evaluation row that holds its id. By default --id_field.", "", group="input"
    )
    eval_fields: str = flag(
        "Whether several fields of an evaluation row are one text, joined by line feeds, or are "
        "looked up separately.",
        "joined",
        choices=("joined", "each"),
        group="input",
    )
    eval_format: str = flag(
        "lm_eval reads samples that lm-evaluation-harness writes, a set per task, and their "
        "question, target and doc_hash, unless --eval_text_field and --eval_id_field name others.",
        "plain",
        choices=("plain", "lm_eval"),
        group="input",
    )
    num_shards: int = flag(
        "Index shards, by ranges of hashes; the training text is read once per shard. 0 derives "
        "the number from --index_memory_mb.",
        0,
        limits=(0, 10_000),
        group="run",
        affects="",
    )
    processes: int = flag(
        "Parallelism: processes in memory, machines on Dataflow, tasks on Flink; 0 leaves it to "
        "the runner.",
        0,
        limits=(0, 100_000),
        group="run",
        affects="",
    )
    limit_test_instances: int = flag(
        "Rows taken from each evaluation set, for a trial; 0 takes all.",
        0,
        limits=(0, 2**32 - 1),
        group="input",
        affects="matches",
    )
    skip_existing: bool = flag(
        "Resume a failed run, or return a finished result, if inputs and options are the same.",
        False,
        action="store_true",
        group="run",
        affects="",
    )
    index_memory_mb: int = flag(
        "Memory of the index in MiB per worker; 0 takes a third of the worker's memory.",
        0,
        limits=(0, 1 << 20),
        group="run",
        affects="",
    )
    degenerate: str = flag(
        "Evaluation rows with only empty tokens, which match nearly any text: emit their matches, "
        "or skip them.",
        "emit",
        choices=("emit", "skip"),
        group="n-grams",
        affects="matches",
    )
    details: str = flag(
        "Records of overlap_details: full, with both texts; compact, with the texts in separate "
        "files; or none.",
        "full",
        choices=("full", "compact", "none"),
        group="output",
    )
    max_details_gb: int = flag(
        "Max size of overlap_details in GB, before compression. A larger result stops the run "
        "before it is written; the scan is kept.",
        20,
        limits=(1, 1 << 30),
        group="output",
        affects="",
    )
    max_details_per_pair: int = flag(
        "Max records in overlap_details per evaluation row and training row; -1 is no limit. "
        "Records left out are counted.",
        -1,
        limits=(-1, _MAX_COUNT),
        group="output",
    )
    max_details: int = flag(
        "Max records in overlap_details; -1 is no limit. Records left out are counted.",
        -1,
        limits=(-1, _MAX_COUNT),
        group="output",
    )
    max_document_frequency: int = flag(
        "N-grams in more training documents than this are boilerplate: listed, but not counted as "
        "overlap. 0 is the limit of --preset.",
        0,
        limits=(0, _MAX_COUNT),
        group="n-grams",
    )
    drop_ngrams: str | Sequence[str] = flag(
        "File of JSON lines with n-grams that are not counted as overlap, such as the "
        "overlap_boilerplate.jsonl of another result; may be repeated.",
        (),
        action="append",
        group="n-grams",
        affects="",
    )
    rules: str = flag(
        f"Published rules for clean and dirty rows: {', '.join(PUBLISHED)}, separated by "
        "commas, or none; their n are added to --ngram_length.",
        NO_RULES,
        group="n-grams",
        action=Once,
    )
    threshold: float = flag(
        "A row is dirty if this share of its tokens is in shared n-grams of the shortest "
        "--ngram_length. 0 is no rule.",
        0.0,
        limits=(0, 1),
        group="n-grams",
    )
    min_tokens: int = flag(
        "Evaluation rows of fewer tokens match nothing and are listed. 0 is no limit.",
        0,
        limits=(0, MAX_N),
        group="n-grams",
        affects="matches",
    )
    removal: RemovalConfig = RemovalConfig()
    remove_output: str = flag(
        "Folder of the clean corpus of --remove.", "", group="removal", affects=""
    )
    overwrite: bool = flag(
        "Replace a finished result.", False, action="store_true", group="output", affects=""
    )
    debug: bool = flag(
        "Show Beam's log, and tracebacks.", False, action="store_true", group="run", affects=""
    )
    attribute_name: str = ""
    estimated_doc_count: int = 0
    false_positive_rate: float = 0.0
    mode: str = ""

    def __post_init__(self) -> None:
        if self.ngram is None:  # pyright: ignore[reportUnnecessaryComparison] - marin's default
            object.__setattr__(self, "ngram", NGramConfig())
        if not isinstance(self.ngram, NGramConfig):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"ngram={self.ngram!r} is not an NGramConfig: give NGramConfig(15)")
        for name in ("input_path", "decontaminate_source"):  # paths or steps
            paths = tuple(map(_path_of, several(value := getattr(self, name))))
            if paths != several(value):
                object.__setattr__(self, name, paths)
        check_flags(self)
        _warn_without_effect(self)
        check_path("output_path", self.output_path)
        if self.removal.remove != NO_REMOVAL and not self.remove_output:
            raise UsageError(f"--remove={self.removal.remove} needs --remove_output=FOLDER")
        check_cut(self.removal, self.text_field)
        if self.removal.remove == NO_REMOVAL and self.remove_output:
            raise UsageError(
                f"--remove_output={self.remove_output} needs --remove=document, split or mask"
            )
        if not self.tokenizer:
            object.__setattr__(self, "tokenizer", self.rules_of_preset.tokenizer)
        tokenizer_named(self.tokenizer)
        if self.eval_fields == "each" and not self.eval_text_fields:
            raise UsageError("--eval_fields=each requires --eval_text_field")
        if "" in self.eval_text_fields:
            raise UsageError(
                f"--eval_text_field={','.join(several(self.eval_text_field))} has an empty name"
            )
        for name in self.datasets:
            # Lone surrogates, from names that are not UTF-8, are not printable.
            if "/" in name or not name.isprintable():
                raise UsageError(
                    f"--decontaminate_source: the evaluation set {name!r} is not a valid file "
                    "name: rename it with NAME=PATH"
                )
        lists = clean_list_names(self.datasets, self.lengths)
        for name in lists:
            if lists.count(name) > 1:
                raise UsageError(
                    f"--decontaminate_source: two lists would be called {name}: rename one of the "
                    "evaluation sets with NAME=PATH"
                )

    @property
    def rules_of_preset(self) -> Preset:
        """What counts as overlap by --preset."""
        return PRESETS[self.preset]

    @property
    def all_rules(self) -> tuple[Rule, ...]:
        """The requested published rules in order, then that of --threshold."""
        return rules_of(self.rules, self.threshold, self.ngram.lengths[0])

    @property
    def lengths(self) -> tuple[int, ...]:
        """Every n of the run, from --ngram_length and the rules, ascending."""
        return tuple(sorted({*self.ngram.lengths, *(rule.n for rule in self.all_rules)}))

    @property
    def input_paths(self) -> tuple[str, ...]:
        """The values of --input_path."""
        return several(self.input_path)

    @property
    def sources(self) -> tuple[str, ...]:
        """The values of --decontaminate_source, as given."""
        return several(self.decontaminate_source)

    @property
    def datasets(self) -> list[str]:
        """The distinct names of the evaluation sets, in the order given."""
        names = dict.fromkeys(source.name for source in evaluation_sources(self.sources))
        if self.eval_fields == "joined":
            return list(names)
        return [name_with_field(name, field) for name in names for field in self.eval_text_fields]

    @property
    def drop_paths(self) -> tuple[str, ...]:
        """The values of --drop_ngrams."""
        return several(self.drop_ngrams)

    @property
    def has_boilerplate(self) -> bool:
        """Whether some shared n-grams may not count."""
        given = self.max_document_frequency, self.drop_paths, self.rules_of_preset.max_eval_rows
        return any(given)

    @property
    def eval_text_fields(self) -> tuple[str, ...]:
        """The distinct text fields of an evaluation row; empty means --text_field."""
        given = [name.strip() for text in several(self.eval_text_field) for name in text.split(",")]
        return tuple(dict.fromkeys(given)) or (_LM_EVAL_TEXTS if self.is_lm_eval else ())

    @property
    def is_lm_eval(self) -> bool:
        """Whether evaluation rows are samples of lm-evaluation-harness."""
        return self.eval_format == "lm_eval"

    @property
    def eval_id(self) -> str:
        """The id field of an evaluation row."""
        return self.eval_id_field or (_LM_EVAL_ID if self.is_lm_eval else self.id_field)


def flag_fields() -> list[Field[Any]]:
    """Returns the flags of the job."""
    return flags_of(DeconConfig)


def make_parser() -> OneLineParser:
    """Returns the parser of the job's flags."""
    description = "Finds every n-gram that evaluation sets share with training documents."
    example = "--preset precise --input_path corpus --decontaminate_source eval --output_path found"
    return job_parser("beam_pipeline.overlap", description, example, flag_fields())


def config_of(flags: argparse.Namespace) -> DeconConfig:
    """Returns the options of parsed flags; raises UsageError for an invalid value."""
    values = vars(flags).copy()
    given = values.pop("ngram_length")
    if given is not None:  # each a comma-separated list
        try:
            values["ngram_length"] = [int(n) for value in given for n in value.split(",")]
        except ValueError as error:
            raise UsageError(
                f"--ngram_length={','.join(given)}: give integers, such as 15 or 5,10,15"
            ) from error
    for name in ("eval_text_field", "drop_ngrams"):
        values[name] = values[name] or ()
    return from_flags(DeconConfig, values)


def parse(argv: Sequence[str]) -> tuple[DeconConfig, "PipelineOptions"]:
    """Returns the options of a command line, and Beam's; raises UsageError for an invalid flag."""
    known, rest = make_parser().parse_known_args(argv)
    config = config_of(known)
    from beam_pipeline.jobs.beam_options import parse_beam_options

    return config, parse_beam_options(rest, [item.name for item in flag_fields()])
