"""Draws pictures of how the routers of a trained model route an image."""
