"""The Beam job: its configuration, work units, pipeline and progress files."""
