"""Parses a command line into the options of a command."""
