"""Steps of writing ArrayRecord that are repeated, lost or run twice leave the same files."""

from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

from beam_pipeline.array_record_io import (
    DEFAULT_OPTIONS,
    content_key,
)
from beam_pipeline.errors import ProbelineError
from beam_pipeline.shards.staging import (
    Records,
    StagedRecords,
    StageRecords,
    serialised,
)
from beam_pipeline.shards.writing import (
    AssignToShards,
    Finalise,
    RecordIndex,
    ShardInfo,
    ShardTarget,
    WriteShard,
)
from beam_pipeline.storage.files import remove_folder
from tests.support.array_record_files import (
    WORDS,
    bytes_below,
    files_below,
    records_of,
    shuffled,
)
from tests.support.helpers import NOW, run_do_fn

ATTRIBUTES = pa.schema([("start", pa.binary())])


def records_of_words(words: list[bytes]) -> Records:
    """Returns words as records; what is known of each is how it starts."""
    starts = pa.record_batch([pa.array([word[:4] for word in words])], schema=ATTRIBUTES)
    return Records(list(map(content_key, words)), words, serialised(starts))


def stage(
    folder: Path, words: list[bytes], inline_bytes: int = 100, num_bundles: int = 1
) -> list[StagedRecords]:
    """Stages words, a few in an element."""
    staged = []
    for number in range(num_bundles):
        own = words[number::num_bundles]
        elements = [records_of_words(own[at : at + 7]) for at in range(0, len(own), 7)]
        do_fn = StageRecords(str(folder / "staged"), inline_bytes, ATTRIBUTES)
        staged += run_do_fn(do_fn, elements, **NOW)
    return staged


def target_in(folder: Path, index: RecordIndex | None = None) -> ShardTarget:
    return ShardTarget(
        prefix=str(folder / "out" / "w"),
        suffix=".ar",
        shard_name_template="-SS-NN",
        open_writer=partial(ArrayRecordWriter, options=DEFAULT_OPTIONS),
        temp_folder=str(folder / "temp"),
        attributes=ATTRIBUTES,
        index=index,
    )


def write_shards(target: ShardTarget, staged: list[StagedRecords]) -> list:
    """Runs the writer of each of two shards once, as one attempt of the runner would."""
    assigned = run_do_fn(AssignToShards(target.attributes), staged, [2])
    written = []
    for shard in range(2):
        parts = [StagedRecords("", b""), *(part for number, part in assigned if number == shard)]
        written += run_do_fn(WriteShard([target]), [(shard, parts)], [2])
    return written


def finalise(written: list, index: RecordIndex | None = None) -> list[ShardInfo]:
    folder = Path(written[0].temporary_path).parents[1]
    return run_do_fn(Finalise([target_in(folder, index)]), [None], written)


def test_shards_have_no_final_name_before_the_finaliser(tmp_path):
    written = write_shards(target_in(tmp_path), stage(tmp_path, WORDS))
    assert not (tmp_path / "out").exists()
    assert all(Path(shard.temporary_path).exists() for shard in written)


def test_two_attempts_at_a_shard_write_different_files_of_the_same_bytes(tmp_path):
    words = WORDS + WORDS[:20]
    target, staged = target_in(tmp_path), stage(tmp_path, words, num_bundles=5)
    one, other = write_shards(target, staged), write_shards(target, shuffled(staged, 6))
    for first, second in zip(one, other, strict=True):
        assert first.temporary_path != second.temporary_path
        assert first.info == second.info
        assert Path(first.temporary_path).read_bytes() == Path(second.temporary_path).read_bytes()


def test_finalising_twice_is_finalising_once(tmp_path):
    written = write_shards(target_in(tmp_path), stage(tmp_path, WORDS))
    infos = finalise(written)
    before = bytes_below(tmp_path / "out")
    assert list(before) == ["w-00-02.ar", "w-01-02.ar"]
    assert finalise(written) == infos == [shard.info for shard in written]
    assert bytes_below(tmp_path / "out") == before


def test_a_finaliser_that_died_half_way_is_repeated(tmp_path):
    written = write_shards(target_in(tmp_path), stage(tmp_path, WORDS))
    finalise(written[:1])
    assert finalise(written) == [shard.info for shard in written]
    assert files_below(tmp_path / "out") == ["w-00-02.ar", "w-01-02.ar"]


def test_the_parts_of_another_attempt_replace_what_is_there(tmp_path):
    target, staged = target_in(tmp_path), stage(tmp_path, WORDS)
    one, other = write_shards(target, staged), write_shards(target, staged)
    finalise(one)
    before = bytes_below(tmp_path / "out")
    finalise(other)
    assert bytes_below(tmp_path / "out") == before
    remove_folder(str(tmp_path / "temp"))
    assert not (tmp_path / "temp").exists()


@pytest.mark.parametrize("damage", ["gone", "longer", "other bytes"])
def test_a_part_that_is_gone_without_having_become_its_target_ends_the_run(tmp_path, damage):
    written = write_shards(target_in(tmp_path), stage(tmp_path, WORDS))
    finalise(written)
    path = Path(written[1].info.path)
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(data + b"\0" if damage == "longer" else data[:-1] + b"\1")
    with pytest.raises(ProbelineError, match=r"is gone and .*w-01-02\.ar has other content"):
        finalise(written)


def test_the_index_lists_every_record_and_survives_a_second_finaliser(tmp_path):
    path = str(tmp_path / "out" / "index.parquet")
    index = RecordIndex(path, ATTRIBUTES, lambda attributes: attributes)
    target = target_in(tmp_path, index)
    written = write_shards(target, stage(tmp_path, WORDS))
    finalise(written, index)
    before = bytes_below(tmp_path / "out")
    finalise(written, index)
    assert bytes_below(tmp_path / "out") == before
    table = pq.read_table(index.path)
    assert table.schema.names == ["shard", "position", "num_bytes", "start"]
    for shard, name in enumerate(["w-00-02.ar", "w-01-02.ar"]):
        records = records_of(tmp_path / "out" / name)
        lines = [line for line in table.to_pylist() if line["shard"] == shard]
        assert lines == [
            {"shard": shard, "position": at, "num_bytes": len(word), "start": word[:4]}
            for at, word in enumerate(records)
        ]
