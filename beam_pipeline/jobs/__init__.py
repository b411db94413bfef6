"""Running jobs: Beam's options, launching, Dataflow, the output folder, monitoring."""
