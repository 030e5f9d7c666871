"""Model code specific to hash layers: token ids and MultiHash."""
