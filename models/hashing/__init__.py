"""Everything that is special to hash layers: token ids, codebooks, tables and MultiHash."""
