"""Golden vectors: all case definitions, the files generated from the definitions, and fresh cases from a seed."""
