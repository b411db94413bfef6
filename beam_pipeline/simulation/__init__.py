"""A simulated network of known truth, and the measurements its probes make."""
