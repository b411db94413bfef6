"""The job from Python: a function that runs it, and steps for an executor that calls functions.

A step is a name, a function and its config; running it is `step.fn(step.config)`, here or wherever
it was pickled to. Making one needs no Beam, which comes when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from beam_pipeline.overlap.job.config import DeconConfig, NGramConfig

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

PROOFPILE_NAME = "train_test_overlap/proofpile"
PROOFPILE_LENGTHS = (5, 10, 15)


@dataclass(frozen=True)
class ExecutorStep:
    """What an executor runs: `fn(config)`.

    Attributes:
      name: what the step is called; executors make paths of it.
      fn: returns the path of what it made.
      description: for a person.
    """

    name: str
    fn: Callable[[DeconConfig], str]
    config: DeconConfig
    description: str | None = None


def run_train_test_overlap(
    config: DeconConfig, beam_options: PipelineOptions | Sequence[str] | None = None
) -> str:
    """Finds all n-grams that evaluation sets share with training documents.

    Args:
      config: what is compared, and where the results go.
      beam_options: Beam's options, or its flags; by default the job runs in memory.

    Returns:
      The path of the results, the config's output_path.

    Raises:
      UsageError: the job cannot be run as given.
      ProbelineError: it failed; nothing that looks finished is left.
    """
    from beam_pipeline.overlap.job import launch

    return launch.run_from_python(config, beam_options)


def build_overlap_step(
    name: str,
    input_path: str | Sequence[str],
    decontaminate_source: str | Sequence[str],
    output_path: str,
    **config: Any,
) -> ExecutorStep:
    """Returns a step that compares evaluation sets with training documents.

    Args:
      name: of the step.
      config: other fields of DeconConfig, such as ngram.

    Raises:
      UsageError: a value of the config cannot be.
    """
    settings = DeconConfig(
        input_path=input_path,
        decontaminate_source=decontaminate_source,
        output_path=output_path,
        **config,
    )
    datasets, corpus = ", ".join(settings.datasets), " and ".join(settings.input_paths)
    description = f"N-grams that {datasets} share with {corpus}"
    return ExecutorStep(name, run_train_test_overlap, settings, description)


def build_proofpile_step(
    input_path: str | Sequence[str],
    decontaminate_source: str | Sequence[str],
    output_path: str,
    **config: Any,
) -> ExecutorStep:
    """Returns the step for Proof-Pile-2: n of 5, 10 and 15, its texts in the field `text`.

    Where the corpus, the evaluation sets and the results are is not ours to know. All the rest
    has a default that `config` may replace.

    Args:
      input_path: the corpus, as compressed JSON lines.
      decontaminate_source: the evaluation sets.
      output_path: folder of the results.
      config: other fields of DeconConfig.

    Raises:
      UsageError: a value of the config cannot be.
    """
    settings = {"ngram": NGramConfig(PROOFPILE_LENGTHS), **config}
    return build_overlap_step(
        PROOFPILE_NAME, input_path, decontaminate_source, output_path, **settings
    )
