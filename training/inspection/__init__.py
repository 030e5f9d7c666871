"""Pictures of what the routers of a trained model do with an image."""
