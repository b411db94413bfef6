"""How often WriteToArrayRecord writes a record: the costs in docs/array_record_io.md."""

import pytest

from beam_pipeline import WriteToArrayRecord
from tests.support.helpers import Objects, eager


@pytest.mark.parametrize(
    ("record_bytes", "ordered", "times"),
    [(1024, True, 1), (1025, True, 2), (1025, False, 1)],
)
def test_writes_per_record(
    monkeypatch: pytest.MonkeyPatch, record_bytes: int, ordered: bool, times: int
) -> None:
    created: dict[str, bytes] = {}

    class Kept(dict):
        def __setitem__(self, path: str, data: bytes) -> None:
            created.setdefault(path, data)
            super().__setitem__(path, data)

    monkeypatch.setattr(Objects, "stored", Kept())
    record = bytes(record_bytes)
    options = {"num_shards": 1, "ordered": ordered, "options": "group_size:1,uncompressed"}
    eager([record] * 3, WriteToArrayRecord("objects://b/w", **options))
    # The file with its final name was renamed: on gs:// the service copies it.
    holding = [path for path, data in created.items() if record in data and "/.temp-" in path]
    assert len(holding) == times
