"""The training objectives, a module for each."""
