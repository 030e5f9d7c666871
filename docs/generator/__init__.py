"""The site: pages generated from the specification, the suite and the peer records.

`python -m generator` with docs/ on the path (`nox -s docs`) writes Markdown into `build/pages` and runs Sphinx, which
converts it to HTML and checks every link. Everything derivable is generated: text comes from docstrings, numbers from
calls traced during the build, readings from the ambiguity ledger.
"""
