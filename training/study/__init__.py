"""Studies: several routers or models, each trained with several seeds, compared with intervals."""
