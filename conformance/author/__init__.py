"""What makes the vectors: definitions of cases, the recorder, and what the specification computes from them."""
