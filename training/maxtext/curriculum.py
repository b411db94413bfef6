"""Growing crops: `network_curriculum=128x3000,512x4000` starts with 3,000 steps of 128 tokens.

Every stage has one crop size and the same number of tokens per step. It continues from the previous
stage's checkpoint with newly drawn examples, and rotary positions are scaled with the crops. Shares
of contexts may differ by stage (`network_repeat_share=[1,0.5,0]`), even with the same crop size. A
run of fewer steps ends within its curriculum; with more `steps` it continues as if it had had them.
"""

from typing import Any, NamedTuple

from beam_pipeline.errors import UsageError
from training.tokens.contexts import MIN_CROP


class Stage(NamedTuple):
    """Steps [begin, end) of a run, with crops of `crop_size` tokens."""

    number: int
    begin: int
    end: int
    crop_size: int


Shares = float | tuple[float, ...]


def share_of(shares: Shares, stage: Stage) -> float:
    """Returns the share of a stage, given one share for all stages or one for each."""
    return shares[stage.number] if isinstance(shares, tuple) else shares


def rope_base(config: Any, stage: Stage) -> int:
    """Returns `rope_max_timescale` for one stage of the run that a config describes.

    If crops grow by s, a base that grows by s^(d/(d-2)) stretches the slowest rotation by s and
    keeps the fastest, so that longer crops have few new angles: "NTK-aware" scaling, Peng et al.,
    YaRN, arXiv:2309.00071, section 3.1. The last stage has the config's base.
    """
    exponent = config.head_dim / (config.head_dim - 2)
    share = stage.crop_size / config.max_target_length
    return round(config.rope_max_timescale * share**exponent)


def check_shares(key: str, shares: Shares, curriculum: str) -> None:
    """Raises UsageError unless there is one share for all stages or one for each."""
    num_stages = 1 + len(_parts(curriculum))
    given = shares if isinstance(shares, tuple) else (shares,) * num_stages
    if len(given) != num_stages:
        raise UsageError(
            f"{key} has {len(given)} shares and the curriculum {num_stages} stages: give one share "
            "for all, or one for each"
        )
    if not all(0 <= share <= 1 for share in given):
        raise UsageError(f"{key} is {shares}: it must be from 0 to 1")


def _parts(curriculum: str) -> list[str]:
    return [part for part in curriculum.replace(" ", "").split(",") if part]


def stages_of(curriculum: str, crop_size: int, steps: int) -> list[Stage]:
    """Returns the stages of a run, in order; UsageError if the curriculum is invalid.

    "128x3000,512x4000" is 3,000 steps with crops of 128 tokens, 4,000 with crops of 512, and the
    rest with crops of crop_size, which no stage exceeds; "" is a single stage. Stages that begin
    after the last step are left out.
    """
    given = f"network_curriculum={curriculum}"
    stages: list[Stage] = []
    begin = 0
    for part in _parts(curriculum):
        crop, _, count = part.partition("x")
        if not (crop.isdecimal() and count.isdecimal() and int(count)):
            raise UsageError(f"{given}: {part!r} is not CROPxSTEPS, like 128x3000")
        stages.append(
            Stage(len(stages), begin, min(begin + int(count), steps), min(int(crop), crop_size))
        )
        begin += int(count)
    stages.append(Stage(len(stages), begin, steps, crop_size))
    crops = [stage.crop_size for stage in stages]
    if crops != sorted(crops) or any(crop < MIN_CROP or crop_size % crop for crop in crops[:-1]):
        raise UsageError(
            f"{given}: crops must not shrink from stage to stage, must have {MIN_CROP} tokens or "
            f"more, and must divide max_target_length={crop_size}"
        )
    return [stage for stage in stages if stage.begin < steps]
