"""Direct access to uncompressed ArrayRecord shards, through `reader`."""
