"""Beam's internals are there, and one module reaches them."""

import inspect
import re

import pytest
from apache_beam.runners.portability.fn_api_runner import worker_handlers
from apache_beam.runners.worker import sdk_worker

from beam_pipeline.errors import ProbelineError
from beam_pipeline.jobs import beam_seams
from tests.support.repository import ROOT


def test_no_other_module_imports_them() -> None:
    internal = re.compile(r"(from|import) apache_beam.(portability|runners.(portability|worker))")
    sources = (ROOT / "beam_pipeline").rglob("*.py")
    assert [path.stem for path in sources if internal.search(path.read_text())] == ["beam_seams"]


def test_each_seam_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    beam_seams.check_beam()
    assert "print(" in inspect.getsource(sdk_worker.SdkHarness)
    monkeypatch.delattr(worker_handlers, "STATE_CACHE_SIZE_MB")
    message = r"apache-beam .* lacks STATE_CACHE_SIZE_MB, .*: install apache-beam==2\.77"
    with pytest.raises(ProbelineError, match=message):
        beam_seams.check_beam()
