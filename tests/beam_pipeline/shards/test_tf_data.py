"""What TensorFlow itself makes of our TFRecord files, in an environment of its own.

The environment is made once, in .engines/tensorflow, and kept. It takes half a minute and 1.5 GB.
"""

import base64
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from beam_pipeline.dataset.layout import RECORD_ENCODINGS, RecordEncoding
from beam_pipeline.dataset.tf_example import decode_example
from beam_pipeline.dataset.tfrecord import read_tfrecord
from beam_pipeline.main import main
from tests.support.clean_environment import tensorflow as tensorflow
from tests.support.helpers import measurements_table
from tests.support.repository import ROOT


@pytest.fixture(scope="module", params=RECORD_ENCODINGS)
def dataset(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[RecordEncoding, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    pq.write_table(measurements_table(4000, seed=1, num_probes=12), folder / "in.parquet")
    flags = ("--output_format=tfrecord", f"--record_encoding={request.param}", "--num_shards=2",
             "--max_row_size_mb=0.01")  # fmt: skip
    assert main([f"--input={folder}/in.parquet", f"--output={folder}/out", *flags]) == 0
    return request.param, folder / "out"


def decoded(value: Any) -> Any:
    return base64.b64decode(value) if isinstance(value, str) else value


@pytest.mark.slow
def test_tf_data_reads_the_records_and_features_that_were_written(
    tensorflow: Path, dataset: tuple[RecordEncoding, Path]
) -> None:
    kind, folder = dataset
    script = ROOT / "tests" / "support" / "tf_data_reader.py"
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run(
        [tensorflow, "-I", script, folder], capture_output=True, text=True, env=environment
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    shards = {path.relative_to(folder).as_posix(): path for path in folder.glob("*/*.tfrecord")}
    assert found.keys() == shards.keys() and len(found) == 4
    num_records = 0
    for name, path in shards.items():
        written = list(read_tfrecord(str(path)))
        assert [decoded(record) for record in found[name]["records"]] == written
        features = [{k: decoded(v) for k, v in one.items()} for one in found[name]["features"]]
        if kind == "tf_example":
            rows = [decode_example(record)._asdict() for record in written if type(record) is bytes]
            assert features == [row | {"src_addr": row["src_addr"].encode()} for row in rows]
        else:
            assert features == []
        num_records += len(written)
    assert num_records > 12
