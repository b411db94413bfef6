"""What rows become in training: the analysis of a dataset and the report on training's first steps.

`measuring` samples a dataset into `statistics`, `summary` makes tables of them, `checklist` judges
them, `tables` prints and `plots` draws. `feed_report` does all that for batches of a training run.
"""
