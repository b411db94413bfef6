"""PyTorch with this data. `training.torch_dataset` is the way in, which loads without PyTorch."""
