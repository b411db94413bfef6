"""The first job: measurements grouped by probe, sorted, cut into rows and committed."""
