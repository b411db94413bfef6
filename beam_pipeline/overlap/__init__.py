"""Finds every n-gram that evaluation sets share with a training corpus, with its place in both.

  config = DeconConfig(input_path=…, decontaminate_source=…, output_path=…, ngram=NGramConfig(15))
  run_train_test_overlap(config)

`python -m beam_pipeline.overlap` does the same from a shell. Nothing heavy is imported here.
"""

from beam_pipeline.overlap.job.config import DeconConfig, NGramConfig
from beam_pipeline.overlap.removal.options import RemovalConfig
from beam_pipeline.overlap.steps import (
    ExecutorStep,
    build_overlap_step,
    build_proofpile_step,
    run_train_test_overlap,
)

__all__ = [
    "DeconConfig",
    "ExecutorStep",
    "NGramConfig",
    "RemovalConfig",
    "build_overlap_step",
    "build_proofpile_step",
    "run_train_test_overlap",
]
