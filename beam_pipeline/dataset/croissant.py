"""croissant.json: the description of a dataset for search engines, catalogues and loaders.

The format is Croissant 1.1 (mlcommons.org/croissant/1.1, and mlcommons.org/croissant/RAI/1.0 for
`rai:`). It lists the SHA-256 of `manifest.json` and of each `rows.parquet`; the manifest covers the
shards. Relative paths keep copies self-describing. The publisher and the license are unknown here.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from beam_pipeline.dataset.arrow_record import RECORD_SCHEMA
from beam_pipeline.dataset.data_card import (
    KEYWORDS,
    Totals,
    about,
    address_note,
    input_text,
    limits,
    num_rows,
    splits_of,
    title,
)
from beam_pipeline.dataset.manifest import (
    DEAD_LETTER_FOLDER,
    INDEX_NAME,
    MANIFEST_NAME,
    NAMES_NAME,
    Manifest,
)
from beam_pipeline.dataset.row_codec import MEASUREMENT_SCHEMA
from beam_pipeline.dataset.row_index import INDEX_SCHEMA

CROISSANT_NAME = "croissant.json"
Node = dict[str, Any]  # of JSON-LD

_TERMS = (
    *("annotation", "arrayShape", "citeAs", "column", "containedIn", "equivalentProperty"),
    *("excludes", "extract", "field", "fileObject", "fileProperty", "fileSet", "format"),
    *("includes", "isArray", "isLiveDataset", "jsonPath", "key", "md5", "parentField", "path"),
    *("readLines", "recordSet", "references", "regex", "repeated", "replace", "samplingRate"),
    *("sdVersion", "separator", "source", "subField", "transform", "unArchive", "value"),
)
_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "description": {"@container": "@language"},
    "name": {"@container": "@language"},
    **{term: f"cr:{term}" for term in _TERMS},
}
_CONFORMS_TO = ["http://mlcommons.org/croissant/1.1", "http://mlcommons.org/croissant/RAI/1.0"]
_SHARD_FORMATS = {  # no registered media types
    "arrayrecord": "https://github.com/google/array_record",
    "tfrecord": "https://www.tensorflow.org/tutorials/load_data/tfrecord",
}
_PARQUET = "application/x-parquet"
_DATA_TYPES = {
    pa.int8(): "cr:Int8",
    pa.int32(): "cr:Int32",
    pa.int64(): "cr:Int64",
    pa.float32(): "cr:Float32",
    pa.float64(): "cr:Float64",
    pa.string(): "sc:Text",
    pa.timestamp("us"): "sc:DateTime",
}
_COLUMNS = {  # of rows.parquet, records and measurements
    "shard": "Number of the shard in its split, from 0.",
    "position": "Number of the record in its shard, from 0.",
    "num_bytes": "Bytes of the record, before the compression of the shard.",
    "src_id": "Id of the probe: 63 bits of the BLAKE2b hash of its address.",
    "src_addr": "Source address, which is the probe: canonical IPv4 or IPv6 (RFC 5952).",
    "row_index": "Number of the row within its probe's history, from 0.",
    "n_measurements": "Measurements in the row.",
    "num_ipv6": "Measurements in the row with an IPv6 destination.",
    "num_failed": "Failed pings in the row.",
    "time_span_seconds": "Seconds between the first and the last measurement of the row.",
    "first_timestamp": "Time of the first measurement of the row, UTC.",
    "last_timestamp": "Time of the last measurement of the row, UTC.",
    "event_time": "Time of the measurement, UTC.",
    "dst_addr": "Destination address, canonical IPv4 or IPv6 (RFC 5952).",
    "ip_version": "4 or 6, the version of the destination address.",
    "rtt": "Round-trip time in milliseconds; -1 is a failed ping.",
}
_SPLIT_COUNTS = {
    "num_probes": "Probes of the split.",
    "num_records": "Rows of the split: records in its shards.",
    "num_measurements": "Measurements of the split.",
    "num_bytes": "Bytes of the split's shards.",
}
_SPLIT_TYPES = {"train": "cr:TrainingSplit", "test": "cr:TestSplit"}
_HASHES = f"{MANIFEST_NAME} has the SHA-256 of each file."
_MEASUREMENTS = (
    "The measurements by time, then dst_addr, then rtt: an Arrow IPC stream or the compact "
    f"encoding, see measurement_encoding in {MANIFEST_NAME}."
)


def croissant(manifest: Manifest, totals: Mapping[str, Totals], data: bytes) -> bytes:
    """Returns JSON-LD from the manifest and its bytes; without `totals`, without the time frame."""
    node = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "name": title(manifest),
        "description": f"{num_rows(manifest):,} rows. {about(manifest)}",
        "conformsTo": _CONFORMS_TO,
        "version": f"{max(len(manifest.generations), 1)}.0.0",  # one per generation
        "keywords": KEYWORDS,
        **_dates(manifest),
        **_responsible_ai(manifest, totals),
        "distribution": list(_distribution(manifest, data)),
        "recordSet": list(_record_sets(manifest)),
    }
    return orjson.dumps(node, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _dates(manifest: Manifest) -> Node:
    started = [each.started for each in manifest.generations if each.started]
    if not started:
        return {}
    first, last = started[0], started[-1]
    return {"dateCreated": first, "dateModified": last, "datePublished": last}


def _responsible_ai(manifest: Manifest, totals: Mapping[str, Totals]) -> Node:
    times = [t for total in totals.values() for t in (total.first_us, total.last_us)]
    ends = [t for t in times if t is not None]
    span = [str(np.datetime64(t, "us")) + "Z" for t in (min(ends), max(ends))] if ends else []
    return {
        "rai:dataCollection": "Probes sent pings to destinations and noted the time and the "
        f"round-trip time of each. {input_text(manifest.counts)}",
        "rai:dataCollectionType": ["Direct measurement"],
        "rai:dataCollectionMissingData": "Failed pings are kept, with RTT -1. Rows of the input "
        "that break a rule of the format are dead letters, each with its reason.",
        **({"rai:dataCollectionTimeframe": span} if span else {}),
        "rai:dataLimitations": list(limits(manifest)),
        "rai:dataUseCases": ["Training", "Testing"],
        "rai:personalSensitiveInformation": [address_note(manifest)],
    }


def _node(kind: str, name: str, description: str, **more: Any) -> Node:
    return {"@type": kind, "@id": name, "name": name, "description": description, **more}


def _file(
    path: str, description: str, media_type: str, sha256: str, num_bytes: int | None = None
) -> Node:
    size = {} if num_bytes is None else {"contentSize": f"{num_bytes} B"}
    node = _node("cr:FileObject", path, description, contentUrl=path, **size)
    return {**node, "encodingFormat": media_type, "sha256": sha256}


def _distribution(manifest: Manifest, data: bytes) -> Iterator[Node]:
    """Yields the files: manifest, row indexes, shards, dead letters."""
    digest = hashlib.sha256(data).hexdigest()
    what = "Options, counts, and the checksums of every file."
    yield _file(MANIFEST_NAME, what, "application/json", digest, len(data))
    for name, split in splits_of(manifest).items():
        what = f"The row index of {name}: one line per row."
        yield _file(f"{name}/{INDEX_NAME}", what, _PARQUET, split.index_sha256)
    if names := manifest.names:
        what = "The name of each end that has one, and its address."
        yield _file(NAMES_NAME, what, _PARQUET, names.sha256, names.num_bytes)
    yield _node(
        "cr:FileSet",
        "shards",
        f"The rows, one record each. {_HASHES}",
        encodingFormat=_SHARD_FORMATS[manifest.output_format],
        includes=[f"{name}/*.{manifest.output_format}" for name in splits_of(manifest)],
    )
    if manifest.dead_letter_files:
        yield _node(
            "cr:FileSet",
            "dead_letters",
            f"Input rows that break a rule, with reasons. {_HASHES}",
            encodingFormat=_PARQUET,
            includes=[f"{DEAD_LETTER_FOLDER}/*.parquet"],
        )


def _record_sets(manifest: Manifest) -> Iterator[Node]:
    """Yields the splits with their numbers, the lines of the row indexes, and the rows."""
    types: dict[str, Any] = {"name": "sc:Text", "url": ["sc:URL", "cr:Split"]}
    types |= dict.fromkeys(_SPLIT_COUNTS, "cr:Int64")
    texts = {"name": "Name of the split.", "url": "What it is for.", **_SPLIT_COUNTS}
    records = [
        {
            "splits/name": name,
            "splits/url": _SPLIT_TYPES[name],
            **{f"splits/{column}": getattr(split, column) for column in _SPLIT_COUNTS},
        }
        for name, split in splits_of(manifest).items()
    ]
    yield _node(
        "cr:RecordSet",
        "splits",
        "A probe is in one split only.",
        field=[_field(f"splits/{name}", kind, texts[name]) for name, kind in types.items()],
        dataType="cr:Split",
        key={"@id": "splits/name"},
        data=records,
    )
    for name in splits_of(manifest):
        record_set, path = f"{name}_row_index", f"{name}/{INDEX_NAME}"
        source = {"fileObject": {"@id": path}}
        yield _node(
            "cr:RecordSet",
            record_set,
            f"The lines of {path}: where each row of {name} is, and what it holds.",
            field=[_column_field(record_set, source, column) for column in INDEX_SCHEMA],
            key=[{"@id": f"{record_set}/{column}"} for column in ("shard", "position")],
        )
    fields = list(_row_fields("rows", {"fileSet": {"@id": "shards"}}))
    yield _node("cr:RecordSet", "rows", "The records of the shards.", field=fields)


def _row_fields(record_set: str, source: Node) -> Iterator[Node]:
    """Yields a record's split and columns, with the measurements as a list of their fields."""
    yield {
        **_field(f"{record_set}/split", "sc:Text", "Name of the split, from the shard's folder."),
        "references": {"field": {"@id": "splits/name"}},
        "source": {
            **source,
            "extract": {"fileProperty": "fullpath"},
            "transform": {"regex": "^([a-z]+)/"},
        },
    }
    for column in RECORD_SCHEMA:
        if column.name == "measurements":
            name = f"{record_set}/{column.name}"
            fields = [_column_field(name, source, each, column.name) for each in MEASUREMENT_SCHEMA]
            yield _node("cr:Field", name, _MEASUREMENTS, isArray=True, subField=fields)
        else:
            yield _column_field(record_set, source, column)


def _field(name: str, data_type: str | list[str], description: str) -> Node:
    return _node("cr:Field", name, description, dataType=data_type)


def _column_field(parent: str, source: Node, column: pa.Field, within: str = "") -> Node:
    """Returns the field of a column; `within` is the enclosing column, if nested."""
    node = _field(f"{parent}/{column.name}", _DATA_TYPES[column.type], _COLUMNS[column.name])
    return {**node, "source": {**source, "extract": {"column": within or column.name}}}
