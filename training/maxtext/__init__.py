"""All code that depends on MaxText: its iterators, configuration, curriculum, and predictions."""
