"""Alias of `training.tokens.tokenizer`: the vocabulary, `encode` and `decode`."""
# The arguments of `encode` are of pyarrow, which has no types.
# pyright: reportUnknownVariableType=false

from training.tokens.tokenizer import (
    ROLE_NAMES,
    VOCABULARY_SIZE,
    Measurement,
    decode,
    encode,
    encode_measurement,
)

__all__ = [
    "ROLE_NAMES",
    "VOCABULARY_SIZE",
    "Measurement",
    "decode",
    "encode",
    "encode_measurement",
]
