"""How implementations answer the questions of the ledger, with evidence from source code and from measurements."""
