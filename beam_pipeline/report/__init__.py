"""What programs print and draw with: tables, number formats, plot style, HTML pages."""
