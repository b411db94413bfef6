"""Batches: lanes and their plan, packing, the column cache, iterator states."""
