"""The peers: other ways to group measurements by probe, each written as well as one can."""
