"""The command line of the suite: its options, and what its commands do."""
