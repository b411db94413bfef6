"""An HTML page and a picture of a finished output of the overlap job."""
