"""An HTML page of a finished overlap result."""
