"""Payloads on storage: what was put comes back, whole or piece by piece, or the run ends."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from beam_pipeline.errors import ProbelineError
from beam_pipeline.shards.claim_checks import ClaimReader, ClaimWriter, PayloadReader
from beam_pipeline.storage.files import crc32c
from tests.support.properties import num_examples

in_folder = settings(
    max_examples=num_examples(80), suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@in_folder
@given(
    payload=st.binary(min_size=1, max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=6),
    is_stored=st.booleans(),
    damage=st.one_of(st.none(), st.integers(0, 59)),
)
def test_pieces_are_the_payload_and_the_last_one_tells_of_damage(
    tmp_path, payload, cuts, is_stored, damage
):
    writer = ClaimWriter(str(tmp_path), "claims", 0 if is_stored else len(payload))
    writer.append(b"before")
    claim = writer.put(payload)
    writer.append(b"behind")
    writer.close()
    is_damaged = is_stored and damage is not None
    if is_stored and damage is not None:
        data = bytearray(Path(writer.path).read_bytes())
        data[6 + damage % len(payload)] ^= 1
        Path(writer.path).write_bytes(data)
    bounds = sorted({0, *(cut % len(payload) for cut in cuts)})
    claims = ClaimReader()
    reader = PayloadReader(claim, claims)
    pieces = []
    for start, end in pairwise(bounds):
        pieces.append(reader.read(end - start))
    if is_damaged:
        with pytest.raises(ProbelineError, match="changed after it was written") as error:
            reader.read(len(payload) - bounds[-1])
        assert f"(bytes 6 to {6 + len(payload)})" in str(error.value)
    else:
        pieces.append(reader.read(len(payload) - bounds[-1]))
        assert b"".join(pieces) == payload
    claims.close()


@pytest.mark.parametrize("damaged", [None, 0, 9, 17])
def test_payloads_read_together_are_each_checked(tmp_path: Path, damaged: int | None) -> None:
    payloads = [b"alpha", b"", b"gamma!", b"delta.."]
    data = bytearray(b"".join(payloads))
    if damaged is not None:
        data[damaged] ^= 1
    (tmp_path / "claims").write_bytes(data)
    path, lengths = str(tmp_path / "claims"), list(map(len, payloads))
    checksums = list(map(crc32c, payloads))
    reader = ClaimReader()
    for wait in (
        reader.prefetch_in(path, [0, 5, 5, 11], lengths, checksums),
        reader.prefetch_adjacent(path, 0, lengths, checksums),
    ):
        if damaged is None:
            assert wait() == payloads
        else:
            with pytest.raises(ProbelineError, match="changed after it was written"):
                wait()
    reader.close()
