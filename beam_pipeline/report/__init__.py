"""What programs print and draw with: HTML pages, plot style, tables, number formats."""
