"""Evaluations besides the accuracy on the run's own images: other sets of images, few-shot, nearest neighbours, cost."""
