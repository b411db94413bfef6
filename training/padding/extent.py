"""How much `training.analyze_padding` measures, as flags."""

from dataclasses import dataclass

from beam_pipeline.cli.flags import check_flags, flag


@dataclass(frozen=True)
class Extent:
    """How much is measured, and at what crop size."""

    crop_size: int = flag("tokens of an example.", 1024, group="extent")
    seed: int = flag("seed of the sample and of all draws.", 0, group="extent")
    max_rows: int = flag("rows that are read one by one.", 300, limits=(1, None), group="extent")
    num_batches: int = flag(
        "batches that are taken from build_dataset.", 32, limits=(1, None), group="extent"
    )
    repeat_share: float = flag(
        "share of the contexts of large rows that have few destinations, as in training.",
        0.0,
        limits=(0, 1),
        group="extent",
    )

    def __post_init__(self) -> None:
        check_flags(self)
