"""The training corpus written anew without what evaluation sets share with it."""
