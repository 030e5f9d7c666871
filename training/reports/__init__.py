"""The report of a run: its curves, its cost, and the page that contains them."""
