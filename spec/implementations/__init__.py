"""How implementations answer the questions of the ledger: where in their code, and what was measured."""
