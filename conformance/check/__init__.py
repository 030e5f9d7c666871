"""Run the suite on a target and compare results."""
