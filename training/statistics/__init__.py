"""Statistics of training examples: padding, modes, segments, windows, sizes.

`collector` checks and counts batches. Two commands build on it: `analysis` samples a dataset, for
the tables and checks of `summary`; `feed` counts the first batches of a training run, for
`feed_report`. `plots` draws both.
"""
