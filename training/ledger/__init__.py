"""The ambiguity ledger for readers: what concerns a router, what an implementation does, where two of them differ."""
