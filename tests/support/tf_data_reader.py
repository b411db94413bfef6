"""Reads TFRecord shards by tf.data, in an environment that has TensorFlow and nothing of ours.

  python tf_data_reader.py FOLDER

Prints one JSON object: for each shard below FOLDER, by its path there, a list of its records, in
base64; and, of those that are a tf.train.Example, the features that TensorFlow parses.
"""

import base64
import json
import sys
from pathlib import Path

import tensorflow as tf  # type: ignore[import-not-found]

FEATURES = {
    "src_id": tf.io.FixedLenFeature([], tf.int64),
    "measurements": tf.io.FixedLenFeature([], tf.string),
    "n_measurements": tf.io.FixedLenFeature([], tf.int64),
    "time_span_seconds": tf.io.FixedLenFeature([], tf.float32),
    "first_timestamp": tf.io.FixedLenFeature([], tf.int64),
    "last_timestamp": tf.io.FixedLenFeature([], tf.int64),
    "src_addr": tf.io.FixedLenFeature([], tf.string),
    "row_index": tf.io.FixedLenFeature([], tf.int64),
}


def plain(value):
    value = value.numpy()
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value.item()


def main(folder: Path) -> None:
    found = {}
    for path in sorted(folder.glob("*/*.tfrecord")):
        dataset = tf.data.TFRecordDataset(str(path))
        records = [record.numpy() for record in dataset]
        features = []
        if records and records[0].startswith(b"\x0a"):
            parsed = dataset.map(lambda record: tf.io.parse_single_example(record, FEATURES))
            features = [{name: plain(value) for name, value in one.items()} for one in parsed]
        found[path.relative_to(folder).as_posix()] = {
            "records": [base64.b64encode(record).decode() for record in records],
            "features": features,
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
