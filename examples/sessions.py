"""Events in ArrayRecord, and the sessions of each user: write, read, sort, cut.

  python examples/sessions.py sessions

It writes events in no order to sessions/events-*.arrayrecord, reads them, sorts those of each
user by time with `SortEachGroup`, and cuts them where a user paused for half an hour. The folder
may be on gs://; flags of Beam follow it.
"""

import json
import struct
import sys
from collections.abc import Iterator

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipeline import ReadFromArrayRecord, SortEachGroup, SortedGroup, WriteToArrayRecord

PAUSE_S = 1800
NUM_USERS, NUM_EVENTS = 5, 400


def events() -> Iterator[dict]:
    """Yields events of users, each user with a rhythm of its own, in no order of time."""
    for number in range(NUM_EVENTS):
        user = number % NUM_USERS
        step = number * 7919 % NUM_EVENTS // NUM_USERS
        yield {"user": f"user {user}", "time_s": step * 60 + step // (5 + user) * 2 * PAUSE_S}


def by_user(record: bytes) -> tuple[str, tuple[bytes, bytes]]:
    """Returns (user, (time as a sort key, record)): big-endian bytes sort as their numbers do."""
    event = json.loads(record)
    return event["user"], (struct.pack(">Q", event["time_s"]), record)


def sessions(group: tuple[str, SortedGroup]) -> Iterator[str]:
    """Yields a line for each session of a user; holds one event at a time."""
    user, pairs = group
    start = last = count = 0
    for sort_key, _ in pairs:
        (time_s,) = struct.unpack(">Q", sort_key)
        if count and time_s - last >= PAUSE_S:
            yield f"{user}: {count} events from {start} s to {last} s"
            count = 0
        start, last, count = time_s if not count else start, time_s, count + 1
    yield f"{user}: {count} events from {start} s to {last} s"


def main(argv: list[str]) -> None:
    folder, *flags = argv
    with beam.Pipeline(options=PipelineOptions(flags)) as pipeline:
        records = (
            pipeline | beam.Create(events()) | beam.Map(lambda event: json.dumps(event).encode())
        )
        _ = records | WriteToArrayRecord(f"{folder}/events", num_shards=2)
    sort = SortEachGroup(f"{folder}/temp")
    with beam.Pipeline(options=PipelineOptions(flags)) as pipeline:
        _ = (
            pipeline
            | ReadFromArrayRecord(f"{folder}/events-*")
            | beam.Map(by_user)  # (user, (time, record))
            | sort  # (user, SortedGroup)
            | beam.FlatMap(sessions)
            | beam.io.WriteToText(f"{folder}/sessions", ".txt", shard_name_template="")
        )
    sort.remove_temporary_files()


if __name__ == "__main__":
    main(sys.argv[1:])
