"""What a finished dataset holds: `python -m beam_pipeline.inspect`. Imports nothing heavy."""
