"""The suite's command line: options and commands."""
