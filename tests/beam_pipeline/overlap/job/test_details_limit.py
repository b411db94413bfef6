"""A run stops before it writes more details than there is room for, and goes on without a scan."""

from pathlib import Path

import pytest

from beam_pipeline.overlap.__main__ import main
from beam_pipeline.overlap.job import gathering, scanning
from tests.support.overlap_jobs import corpus, files_below, flags  # noqa: F401 (fixture)


def test_the_scan_of_a_run_without_room_for_its_details_is_kept(
    corpus: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(flags(corpus)) == 0
    undisturbed = files_below(corpus / "out/stats")
    monkeypatch.setattr(gathering, "free_bytes", lambda path: 1000)
    assert main([*flags(corpus), "--overwrite"]) == 1
    said = capfd.readouterr().err.strip().splitlines()[-1]
    assert "would have 17 records of 0.0 GB" in said and "more than the 0.0 GB free there" in said
    assert "with --skip_existing and --details=compact, --max_details_per_pair=1" in said
    assert not (corpus / "out/.SUCCESS").exists()

    def not_again(*_: object) -> None:
        raise AssertionError("a work unit is scanned again")

    monkeypatch.setattr(scanning, "read_work_unit", not_again)
    fewer = [*flags(corpus), "--skip_existing", "--max_details=1"]
    assert main(fewer) == 0
    assert len(files_below(corpus / "out/stats")) == len(undisturbed) + 1  # what is left out
    monkeypatch.undo()
    monkeypatch.setattr(scanning, "read_work_unit", not_again)
    assert main([*flags(corpus), "--skip_existing", "--overwrite"]) == 0
    assert files_below(corpus / "out/stats") == undisturbed
