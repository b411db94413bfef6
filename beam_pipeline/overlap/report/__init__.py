"""A page and a picture of a finished overlap run."""
