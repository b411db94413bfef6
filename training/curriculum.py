"""Crops that grow: `network_curriculum=128:3000,512:7000` in steps of training.

A stage has crops of one length and as many tokens a step as the others, so shorter crops come in
larger batches. Stages hand the model on through a checkpoint; each begins its data anew.
"""

from typing import NamedTuple

from beam_pipeline.errors import UsageError
from training.contexts import LEAST_CROP


class Stage(NamedTuple):
    """Steps [begin, end) of a run, and the tokens of a crop in them."""

    number: int
    begin: int
    end: int
    crop_size: int


def stages_of(curriculum: str, crop_size: int, steps: int) -> list[Stage]:
    """Returns the stages of a run, in order; one, if there is no curriculum.

    Args:
      curriculum: "128:3000,512:7000" is crops of 128 tokens until step 3000, then of 512 until
        step 7000, then of crop_size.

    Raises:
      UsageError: it cannot be read, or does not lead to crop_size within the steps.
    """
    given = f"network_curriculum={curriculum!r}"
    stages: list[Stage] = []
    begin = 0
    for part in [*filter(None, curriculum.replace(" ", "").split(",")), f"{crop_size}:{steps}"]:
        crop, _, end = part.partition(":")
        if not (crop.isdecimal() and end.isdecimal()):
            raise UsageError(f"{given}: {part!r} is not CROP:STEP, like 128:3000")
        stage = Stage(len(stages), begin, int(end), int(crop))
        if stage.begin >= stage.end:
            raise UsageError(
                f"{given} gives crops of {crop} the steps from {begin} to {end}: steps must grow, "
                f"up to steps={steps}"
            )
        if stages and stage.crop_size <= stages[-1].crop_size:
            raise UsageError(
                f"{given}: crops must grow, to max_target_length={crop_size}, which needs no entry"
            )
        stages.append(stage)
        begin = stage.end
    for stage in stages[:-1]:
        if stage.crop_size < LEAST_CROP or crop_size % stage.crop_size:
            raise UsageError(
                f"{given}: crops of {stage.crop_size} must have {LEAST_CROP} tokens or more and "
                f"divide max_target_length={crop_size}"
            )
    return stages
