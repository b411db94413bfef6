"""The peers: other ways to do the work of the benches, each written as well as possible."""
