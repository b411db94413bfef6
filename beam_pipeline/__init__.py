"""Probeline: ping measurements in Parquet to probe rows in sharded ArrayRecord, on Apache Beam.

The public names are exported here and loaded on first use, so importing this package loads nothing
heavy: Beam, Arrow and numba are loaded with the names that need them (tested).
"""

from beam_pipeline.lazy_exports import exporting

__version__ = "0.3.0"

__getattr__, __dir__, __all__ = exporting(  # pyright: ignore[reportUnsupportedDunderAll]
    __name__,
    {
        "array_record_io": "ReadAllFromArrayRecord ReadFromArrayRecord WriteToArrayRecord",
        "dataset.manifest": "Manifest",
        "dataset.row_codec": "ProbeRow decode_record",
        "dataset.rows": "Dataset Rows open_dataset",
        "errors": "ProbelineError UsageError",
        "sort_each_group": "SortEachGroup SortedGroup",
        "overlap": "DeconConfig NGramConfig run_train_test_overlap",
    },
)
