"""The last steps on `gs://`: however many work units there are, they wait for few requests."""

import functools
import gzip
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from beam_pipeline.jobs import frame
from beam_pipeline.overlap.__main__ import main
from beam_pipeline.overlap.job import gathering, scanning
from tests.support.engines import Gcs, stored_objects
from tests.support.faulty_gcs import FaultyGcs, faulty

LINE = '{"text": "one two"}\n'
NUM_UNITS = 100  # each a line, with a match


@pytest.mark.slow
@pytest.mark.parametrize(("num_files", "longest"), [(1, 80), (100, 100)])
def test_hundreds_of_units_wait_for_few_requests(
    gcs: Gcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_files: int, longest: int
) -> None:
    """Their 150 requests, one after another, would be 8 seconds at 50 ms."""
    (tmp_path / "in").mkdir()
    for number in range(num_files):
        (tmp_path / f"in/{number}.jsonl").write_text(LINE * (NUM_UNITS // num_files))
    (tmp_path / "quiz.jsonl").write_text(LINE)
    monkeypatch.setattr(scanning, "WORK_UNIT_BYTES", len(LINE))
    proxies: dict[str, list[FaultyGcs]] = defaultdict(list)

    def behind_proxies(name: str, step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(step)
        def counted(*args: Any) -> Any:
            with faulty(gcs.endpoint, delay_s=0.05) as proxy, monkeypatch.context() as patch:
                patch.setenv("STORAGE_EMULATOR_HOST", proxy.endpoint)
                proxies[name].append(proxy)
                return step(*args)

        return counted

    for module, name in ((gathering, "join_group"), (frame, "commit")):
        monkeypatch.setattr(module, name, behind_proxies(name, getattr(module, name)))
    sets = f"--decontaminate_source=quiz={tmp_path}/quiz.jsonl"
    output = f"{gcs.make_bucket()}/out"
    flags = [f"--input_path={tmp_path}/in", sets, f"--output_path={output}"]
    assert main([*flags, "--ngram_length=2", "--direct_num_workers=1"]) == 0
    lines = gzip.decompress(stored_objects(output)["stats/overlap_details.jsonl.gz"]).splitlines()
    rows = {(line["train_path"], line["train_row"]) for line in map(json.loads, lines)}
    assert len(rows) == len(lines) == NUM_UNITS  # objects that are composed in several steps
    (finishing,) = proxies["commit"]
    assert max(joining.longest_chain() for joining in proxies["join_group"]) < 30
    assert finishing.longest_chain() < longest
    # A unit adds a 32nd of a request to join its files, and a 25th to delete them.
    assert num_files == NUM_UNITS or len(finishing.requests) < 100 + 0.3 * NUM_UNITS
