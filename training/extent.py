"""How much `analyze_padding` and `evaluate` measure, as flags; without heavy imports."""

from dataclasses import dataclass
from functools import partial

from beam_pipeline.cli.flags import check_flags, flag

_flag = partial(flag, group="extent")


@dataclass(frozen=True)
class AnalysisExtent:
    """How much `analyze_padding` measures, and at what crop size."""

    crop_size: int = _flag("tokens of an example.", 1024)
    seed: int = _flag("seed of the sample and of all draws.", 0)
    max_rows: int = _flag("rows to read one by one.", 300, limits=(1, None))
    num_batches: int = _flag("batches to take from build_dataset.", 32, limits=(1, None))
    repeat_share: float = _flag(
        "share of large rows' contexts with few destinations, as in training.", 0.0, limits=(0, 1)
    )

    def __post_init__(self) -> None:
        check_flags(self)


@dataclass(frozen=True)
class EvaluationExtent:
    """How much `evaluate` measures; `batch_size` is halved until the rows suffice for it."""

    num_contexts: int = _flag("examples to evaluate.", 192, limits=(1, None))
    num_rtt: int = _flag(
        "max RTTs to predict; at least half as many each to new and to repeated destinations, if "
        "available.",
        2000,
        limits=(0, None),
    )
    num_train_contexts: int = _flag(
        "training examples that unigrams are counted in.", 2000, limits=(1, None)
    )
    num_train_rows: int = _flag("max training rows for the RTT baselines.", 4000, limits=(1, None))
    batch_size: int = _flag("examples that the model predicts at once.", 8, limits=(1, None))
    seed: int = _flag("seed of contexts and samples.", 0, limits=(0, None))

    def __post_init__(self) -> None:
        check_flags(self)
