"""Reads a dataset back and checks what its format promises. Imports no Beam."""
