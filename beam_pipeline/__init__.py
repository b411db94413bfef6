"""Probeline: ping measurements in Parquet to probe rows in sharded ArrayRecord, on Apache Beam.

Importing this package loads nothing heavy: Beam, Arrow and numba arrive with the modules that
need them (a test holds that).
"""

__version__ = "0.1.0"
