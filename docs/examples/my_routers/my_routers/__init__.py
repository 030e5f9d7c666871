"""Custom routers in a third-party package: one with a parameter, one with a state, and one with a new building block."""
