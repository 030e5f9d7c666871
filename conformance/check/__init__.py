"""What runs the suite on a target, and compares."""
