"""Studies: train several routers or models, each with several seeds, and compare them with confidence intervals."""
