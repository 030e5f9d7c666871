"""The algorithms: one module each, written as its paper writes it."""
