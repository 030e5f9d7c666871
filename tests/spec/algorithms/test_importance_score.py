"""Importance-score routing: how many tokens are left. The whole of it is in tests/models/test_sparse_mlp.py by hand."""

import math

import pytest

from moespec.spec.algorithms.importance_score import surviving_tokens


@pytest.mark.parametrize("tokens", [1, 9, 10, 11, 19, 20, 196, 384, 1000, 1572864])
def test_a_tenth_is_rounded_down(tokens):
    assert surviving_tokens(tokens, 0.1) == tokens - tokens // 10
    assert surviving_tokens(tokens, 0.5) == math.ceil(tokens / 2)
