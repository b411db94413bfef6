"""A simulated network with known truth, and its probes' measurements."""
