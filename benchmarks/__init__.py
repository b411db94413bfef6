"""Benchmarks: Probeline beside what one would otherwise write, on the same machine and data."""
