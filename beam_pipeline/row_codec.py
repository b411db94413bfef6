"""Alias of `beam_pipeline.dataset.row_codec`, under the name that readers of rows import."""

from beam_pipeline.dataset.row_codec import decode_record

__all__ = ["decode_record"]
