"""Uncompressed ArrayRecord shards read without their library; `reader` is the only way in."""
