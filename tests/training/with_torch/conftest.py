"""Tests that import PyTorch, collected where it is installed; test_torch_dataset.py runs them."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*"]
