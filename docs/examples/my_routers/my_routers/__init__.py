"""Routers of one's own, in a package of one's own: with a parameter, with a state, and with arithmetic that moespec does not have."""
