"""Reads a dataset back and checks the promises of its format. Does not import Beam."""
