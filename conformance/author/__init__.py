"""Authoring of vectors: case definitions, the call recorder, and expected results computed by the specification."""
