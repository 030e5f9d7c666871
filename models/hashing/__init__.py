"""The model code that only hash layers need: token ids and MultiHash."""
