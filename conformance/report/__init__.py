"""The outcome of a run: results, reports, tables, the page and the badge."""
