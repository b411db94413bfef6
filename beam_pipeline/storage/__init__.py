"""Files, local and on gs://: reading, atomic writing, checksums, local copies."""
