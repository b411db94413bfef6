"""The format of a dataset of probe rows: addresses, the row codec, the manifest. Knows no Beam."""
