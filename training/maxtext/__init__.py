"""Everything that knows MaxText: its iterators, configuration, curriculum, and predictions."""
