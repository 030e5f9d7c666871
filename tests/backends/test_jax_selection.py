"""The largest entries of a row in JAX: those of a stable sort, without sorting the row."""

import importlib
import re

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

jax = pytest.importorskip("jax")
B = importlib.import_module("moespec.backends.jax")
top_indices = importlib.import_module("moespec.backends.jax.arrays").top_indices

ENTRIES = [float("inf"), -float("inf"), 0.0, -0.0, 1.0, 1.0 + 2**-20, -2.5]
"""So few that most rows hold an entry twice; two of them are equal in 16 bits."""
COMPILED = jax.jit(top_indices, static_argnums=1)
SCORES = np.random.default_rng(0).random((2, 12, 5)).astype(np.float32)
SELECTIONS = {
    "gshard_keep": lambda scores: B.gshard_keep(scores, scores[:, :, 0]),
    "load_loss": lambda scores: B.load_loss(scores, scores, choices=2, noise_std=1.0),
    "noisy_top_k_load_loss": lambda scores: B.noisy_top_k_load_loss(scores, scores, scores, choices=2),
    "token_choice": lambda scores: B.token_choice(scores, choices=2, capacity=3),
    "expert_choice": lambda scores: B.expert_choice(scores, capacity=3),
    "sparse_transport_affinity": lambda scores: B.sparse_transport_affinity(scores, capacity=3),
    "transport_semi_dual": lambda scores: B.transport_semi_dual(scores[:, :, 0], scores, capacity=3),
}


@settings(deadline=None)
@example([0.0, -0.0, 0.0, -0.0, 0.0, -0.0], 2, "float32")
@given(
    st.lists(st.sampled_from(ENTRIES), min_size=6, max_size=6), st.sampled_from([1, 2, 5]),
    st.sampled_from(["float32", "bfloat16"]),
)  # fmt: skip
def test_the_largest_are_those_of_a_stable_sort(row, count, dtype):
    scores = jax.numpy.asarray(row, dtype=dtype)[None]
    expected = np.argsort(-np.asarray(scores, np.float32), axis=1, kind="stable")[:, :count]
    assert np.asarray(COMPILED(scores, count)).tolist() == expected.tolist()


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the text of a program compiled for a CPU")
@pytest.mark.parametrize("name", SELECTIONS)
def test_no_row_is_sorted_whole(name):
    text = jax.jit(SELECTIONS[name]).lower(SCORES).compile().as_text()
    assert 'custom_call_target="TopK"' in text
    assert not re.search(r"\bsort\(", text)
