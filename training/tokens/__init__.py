"""Measurements to tokens: the vocabulary, what a context draws, and checks on examples."""
