"""What both jobs need of a runner: flags, Beam options, launching, Dataflow, the output folder."""
