"""What makes the vectors and runs the suite: nothing here knows a single algorithm."""
