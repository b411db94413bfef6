"""The evaluation of a trained model by `training.evaluate`.

`examples` draws the contexts, `predictions` queries the model; `losses`, `rtt` and `baselines` turn
its answers into `results`; `report` prints and draws.
"""
