"""Peer: DuckDB copies Parquet without the contaminated documents, by their ids.

    python -m benchmarks.peers.duckdb_removal --input_path=corpus --output=clean \\
        --documents=result/stats/overlap_documents.parquet

Order and row groups are those of the input, as far as rows remain.
"""

import argparse
from pathlib import Path

import duckdb

_ROW_GROUP_ROWS = 8_192


def main() -> None:
    parser = argparse.ArgumentParser(description="Drops the documents that are listed.")
    parser.add_argument("--input_path", required=True, type=Path)
    parser.add_argument("--documents", required=True, type=Path)
    parser.add_argument("--output", required=True, type=Path)
    args = parser.parse_args()
    args.output.mkdir(parents=True)
    connection = duckdb.connect()
    connection.execute(f"CREATE TABLE found AS SELECT train_doc_id FROM '{args.documents}'")
    for path in sorted(args.input_path.iterdir()):
        rows = f"FROM '{path}' WHERE id NOT IN (SELECT train_doc_id FROM found)"
        options = f"FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {_ROW_GROUP_ROWS}"
        connection.execute(f"COPY (SELECT * {rows}) TO '{args.output / path.name}' ({options})")


if __name__ == "__main__":
    main()
