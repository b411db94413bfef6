"""Tokenising, the n-gram index of the evaluation sets, and the scan of training text."""
