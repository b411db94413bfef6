"""Match files, counts, details and every output file of an overlap run."""
