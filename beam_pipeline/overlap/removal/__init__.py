"""Clean training corpora and attributes of training documents, from a finished overlap result."""
