"""What both jobs need of a runner: Beam options, launching, Dataflow, output folder, monitoring."""
