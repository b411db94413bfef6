"""Records of other formats into sharded ArrayRecord, in the order of the input."""
