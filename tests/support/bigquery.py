"""The schema of the RIPE Atlas pings in BigQuery, as Parquet has it.

Source: docs/measurements_ping.md of RIPE-NCC/ripe-atlas-bigquery.
"""

import pyarrow as pa

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
