"""How much `training.evaluate` measures, as flags."""

from dataclasses import dataclass

from beam_pipeline.cli.flags import check_flags, flag


@dataclass(frozen=True)
class Extent:
    """How much is evaluated; `batch_size` is halved until the rows give that many examples."""

    num_contexts: int = flag("examples that are evaluated.", 192, limits=(1, None), group="extent")
    num_rtt: int = flag(
        "RTTs that are predicted, at most; of new and of repeated destinations at least half as "
        "many each, if there are.",
        2000,
        limits=(0, None),
        group="extent",
    )
    num_train_contexts: int = flag(
        "training examples in which unigrams are counted.", 2000, limits=(1, None), group="extent"
    )
    num_train_rows: int = flag(
        "training rows that the RTT baselines use, at most.",
        4000,
        limits=(1, None),
        group="extent",
    )
    batch_size: int = flag(
        "examples that the model predicts at once.", 8, limits=(1, None), group="extent"
    )
    seed: int = flag(
        "seed of the contexts and samples that are drawn.", 0, limits=(0, None), group="extent"
    )

    def __post_init__(self) -> None:
        check_flags(self)
