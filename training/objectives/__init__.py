"""The training objectives, one module each."""
