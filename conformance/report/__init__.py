"""Render the outcome of a run as a report, a table, an HTML page and a badge."""
