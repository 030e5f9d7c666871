"""What is special to hash layers in a model: token ids, MultiHash, and the options of their tables."""
