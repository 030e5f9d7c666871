"""`moespec predict`: classify images with a trained model."""
