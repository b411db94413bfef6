"""Shows the contents of a finished dataset: `python -m beam_pipeline.inspect`. Light imports."""
