"""Printing and drawing for all programs: tables, number formats, plot style, HTML pages."""
