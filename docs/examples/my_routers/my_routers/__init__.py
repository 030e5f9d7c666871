"""Custom routers in a third-party package: one with a parameter, one with a state, one with arithmetic that moespec lacks."""
