"""Statistics of training examples: padding, modes, segments, windows, sizes.

`collector` checks and counts batches. Two commands build on it: `analysis` samples a dataset, for
the tables and checks of `summary`; `feed_report` describes the first batches of a training run.
`plots` draws both.
"""
