"""The site: pages made of what stands in the specification, the suite and the records of peers.

`python -m generator` with docs/ on the path (`nox -s docs`) writes Markdown into `build/pages`, has Sphinx make HTML of
it, which checks every link. Nothing is written by hand that can be derived: a page has its words from docstrings, its
numbers from calls that are traced while it is made, its readings from the ambiguity ledger.
"""
