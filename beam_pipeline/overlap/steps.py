"""The job from Python: a function that runs it, and steps for an executor that calls functions.

A step is a name, a function and its config; `step.fn(step.config)` runs it, also after pickling.
Beam is imported when a step runs, not when it is built.
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
    """A step of an executor, which calls `fn(config)`."""

    name: str  # executors make paths from it
    fn: Callable[[DeconConfig], str]  # returns the path of its output
    config: DeconConfig
    description: str | None = None


def run_train_test_overlap(
    config: DeconConfig, beam_options: PipelineOptions | Sequence[str] | None = None
) -> str:
    """Finds all n-grams that evaluation sets share with training documents.

    Args:
      config: the options of the run.
      beam_options: Beam's options, or its flags; by default the job runs in memory.

    Returns:
      The path of the results, the config's output_path.

    Raises:
      UsageError: the job cannot be run as given.
      ProbelineError: it failed and left no finished output.

    Example:

        config = DeconConfig(
            input_path="corpus", decontaminate_source="eval/mmlu", output_path="overlap"
        )
        run_train_test_overlap(config, ["--direct_num_workers=1"])
    """
    from beam_pipeline.overlap import run

    return run.run_from_python(config, beam_options)


def build_overlap_step(
    name: str,
    input_path: str | Sequence[str],
    decontaminate_source: str | Sequence[str],
    output_path: str,
    **config: Any,
) -> ExecutorStep:
    """Returns a step that runs the job; the arguments after `name` are fields of DeconConfig.

    Raises:
      UsageError: a value of the config is not allowed.
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
    """Returns `build_overlap_step` for Proof-Pile-2, by default with n of 5, 10 and 15.

    Raises:
      UsageError: a value of the config is not allowed.
    """
    settings = {"ngram": NGramConfig(PROOFPILE_LENGTHS), **config}
    return build_overlap_step(
        PROOFPILE_NAME, input_path, decontaminate_source, output_path, **settings
    )
