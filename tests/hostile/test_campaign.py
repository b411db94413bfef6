"""A few uses of the campaign, and what its judge finds."""

import random
from pathlib import Path

import pytest

from tests.hostile.campaign import Use, campaign
from tests.hostile.uses import AREAS, PROGRAMS

# Those that need neither root nor other modules in the warm process.
SAMPLED = ("dataset_files", "edited", "names", "together")


@pytest.mark.slow
def test_a_sample_holds_and_the_judge_finds_faults(tmp_path: Path) -> None:
    chosen = [use for area in SAMPLED for use in random.Random(3).sample(list(AREAS[area]()), 1)]
    bad = (
        "open('{box}/keep/a', 'w'); open('{box}/tmp/x', 'w'); print('unexpected', file=sys.stderr)"
    )
    chosen.append(Use("", "bad", PROGRAMS["verify"], prelude=bad))
    *records, caught = campaign(chosen, tmp_path, preloaded=())
    assert [record for record in records if record["faults"]] == []
    assert caught["faults"] == ["says unexpected", "alters keep/a", "leaves ['tmp/x']"]
