"""Pictures of how the routers of a trained model handle an image."""
