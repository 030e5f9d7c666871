"""How implementations answer the questions of the ledger: places in their code, and measurements."""
