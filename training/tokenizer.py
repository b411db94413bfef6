"""Alias of `training.tokens.tokenizer`: the vocabulary, `encode` and `decode`."""

from training.tokens.tokenizer import ROLE_NAMES, VOCABULARY_SIZE, Measurement, decode, encode

__all__ = ["ROLE_NAMES", "VOCABULARY_SIZE", "Measurement", "decode", "encode"]
