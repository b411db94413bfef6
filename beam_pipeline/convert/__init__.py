"""Conversion of records in other formats to sharded ArrayRecord, in input order."""
