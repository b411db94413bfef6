"""Results of RIPE Atlas: lines to read, and what reading them gives."""

import io
from typing import Any

import orjson
import pyarrow as pa

from beam_pipeline.sources import atlas, measurements
from beam_pipeline.sources.options import COLUMNS, AtlasSource, Hops
from beam_pipeline.sources.tables import TableBatch
from beam_pipeline.storage.lines import read_blocks

GOOD: dict[str, Any] = {
    "fw": 5080,
    "af": 4,
    "dst_addr": "193.0.14.129",
    "src_addr": "192.168.1.7",
    "from": "80.56.151.3",
    "msm_id": 1001,
    "prb_id": 202,
    "timestamp": 1_700_000_000,
    "type": "ping",
    "result": [{"rtt": 12.5}, {"x": "*"}, {"rtt": 13.5, "ttl": 51}],
}


def good(**changes: Any) -> bytes:
    """Returns the line of a good result with other fields; a field set to ... is left out."""
    fields = {**GOOD, **changes}
    return orjson.dumps({name: value for name, value in fields.items() if value is not ...})


def read(
    *lines: bytes, source: AtlasSource = "from", batch_rows: int = 131_072, hops: Hops = "last"
) -> list[TableBatch[pa.RecordBatch]]:
    blocks = read_blocks(io.BytesIO(b"\n".join(lines)))
    return list(atlas.read_json(blocks, source, batch_rows, hops))


def read_one(
    *lines: bytes, source: AtlasSource = "from", hops: Hops = "last"
) -> TableBatch[pa.RecordBatch]:
    (batch,) = read(*lines, source=source, hops=hops)
    return batch


def rows_of(batch: pa.RecordBatch) -> list[tuple]:
    columns = [batch.column(name).to_pylist() for name in COLUMNS]
    return list(zip(*columns, strict=True))


def fault_reasons(batch: pa.RecordBatch) -> list[str]:
    return measurements.check(batch)[1].reasons


# --- the schema of the pings in BigQuery, as Parquet has it ---------------------------------------


# Source: docs/measurements_ping.md of RIPE-NCC/ripe-atlas-bigquery.
PING_TYPE = pa.struct(
    {
        "timeout": pa.bool_(),
        "error": pa.bool_(),
        "error_message": pa.string(),
        "rtt": pa.float64(),
        "reply_src_addr": pa.string(),
        "reply_src_addr_bytes": pa.binary(),
        "ttl": pa.int64(),
        "dup": pa.int64(),
    }
)
BIGQUERY_SCHEMA = pa.schema(
    {
        **dict.fromkeys(("af", "prb_id", "last_time_synced", "msm_id", "group_id"), pa.int64()),
        "src_addr": pa.string(),
        "src_addr_bytes": pa.binary(),
        "dst_addr": pa.string(),
        "dst_addr_bytes": pa.binary(),
        "synth_addr": pa.string(),
        "synth_addr_bytes": pa.binary(),
        "start_time": pa.timestamp("us", "UTC"),
        **dict.fromkeys(("start_hour", "size", "packets_sent", "packets_received"), pa.int64()),
        "pings": pa.list_(PING_TYPE),
    }
)
