"""What `training.evaluate` measures and shows.

`examples` draws the contexts, `kinds` tells what each of their tokens is, `predictions` asks the
model; `losses`, `rtt` and `baselines` make figures of what it says, `evaluating` puts them together
as `results`; `tables` and `plots` show them.
"""
