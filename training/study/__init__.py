"""Trains several routers or models, each with several seeds, and compares the results with confidence intervals."""
