"""Turns the words of a command line into the options of a command."""
