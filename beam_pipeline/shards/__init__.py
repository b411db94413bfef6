"""Records out: claim checks, staging, and the sharded write of ArrayRecord or TFRecord files."""
