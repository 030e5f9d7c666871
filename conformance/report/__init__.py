"""What came of a run: results, reports, tables, the page and the badge."""
