"""All vectors: every definition, the committed files generated from them, and fresh cases from a seed."""
