"""Data sets, augmentation and batches."""
