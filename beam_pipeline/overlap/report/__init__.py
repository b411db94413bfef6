"""An HTML page and an image of a finished overlap result."""
