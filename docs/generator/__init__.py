"""The documentation site: pages generated from the specification, the suite and the peer records.

`python -m generator` with docs/ on the path (`nox -s docs`) writes Markdown into `build/pages` and runs Sphinx, which
converts it to HTML and checks every link. Text comes from docstrings, numbers come from calls traced during the build,
and readings come from the ambiguity ledger.
"""
