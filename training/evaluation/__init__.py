"""The evaluation of a trained model: what `training.evaluate` measures and shows.

`examples` draws the contexts, `predictions` asks the model; `losses`, `rtt` and `baselines` turn
its answers into `results`; `report` prints and draws.
"""
