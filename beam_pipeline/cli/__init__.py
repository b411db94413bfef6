"""Command lines: flags declared as dataclass fields, and one way to run a program."""
