"""What is special to hash layers in a model: token ids and MultiHash."""
