"""The largest entries of a row are those of a stable sort, in its order, whatever the entries; JAX sorts no row whole."""

import importlib
import re

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")
J = importlib.import_module("moespec.backends.jax")
by_jax = jax.jit(importlib.import_module("moespec.backends.jax.arrays").top_indices, static_argnums=1)
selection = importlib.import_module("moespec.backends.torch.selection")

INF = float("inf")
ENTRIES = [INF, -INF, 0.0, -0.0, 1.0, 1.0 + 2**-20, -2.5, 3e-39]
"""So few that most rows hold an entry twice; two of them are equal in 16 bits."""
SCORES = np.random.default_rng(0).random((2, 12, 5)).astype(np.float32)
SELECTIONS = {
    "gshard_keep": lambda scores: J.gshard_keep(scores, scores[:, :, 0]),
    "load_loss": lambda scores: J.load_loss(scores, scores, choices=2, noise_std=1.0),
    "noisy_top_k_load_loss": lambda scores: J.noisy_top_k_load_loss(scores, scores, scores, choices=2),
    "token_choice": lambda scores: J.token_choice(scores, choices=2, capacity=3),
    "expert_choice": lambda scores: J.expert_choice(scores, capacity=3),
    "sparse_transport_affinity": lambda scores: J.sparse_transport_affinity(scores, capacity=3),
    "transport_semi_dual": lambda scores: J.transport_semi_dual(scores[:, :, 0], scores, capacity=3),
}


@settings(deadline=None)
@example([0.0, -0.0, 0.0, -0.0, 0.0, -0.0], 2, "float32")
@given(
    st.lists(st.sampled_from(ENTRIES[:-1]), min_size=6, max_size=6), st.sampled_from([1, 2, 5]),
    st.sampled_from(["float32", "bfloat16"]),
)  # fmt: skip
def test_the_largest_are_those_of_a_stable_sort_in_jax(row, count, dtype):
    scores = jax.numpy.asarray(row, dtype=dtype)[None]
    expected = np.argsort(-np.asarray(scores, np.float32), axis=1, kind="stable")[:, :count]
    assert np.asarray(by_jax(scores, count)).tolist() == expected.tolist()


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the text of a program compiled for a CPU")
@pytest.mark.parametrize("name", SELECTIONS)
def test_no_row_is_sorted_whole(name):
    text = jax.jit(SELECTIONS[name]).lower(SCORES).compile().as_text()
    assert 'custom_call_target="TopK"' in text
    assert not re.search(r"\bsort\(", text)


def by_a_sort(scores, count):
    return torch.sort(scores, dim=-1, descending=True, stable=True).indices[..., :count].int()


@st.composite
def rows(draw):
    shape = draw(st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 9)))
    entries = st.sampled_from([float("nan"), *ENTRIES])
    size = shape[0] * shape[1] * shape[2]
    return torch.tensor(draw(st.lists(entries, min_size=size, max_size=size)), dtype=torch.float64).reshape(shape)


@example(torch.full((1, 2, 5), -INF), 2, "float32")
@example(torch.tensor([[[-INF, 1.0, -INF, -INF, -INF, -INF]]]), 2, "float32")
@example(torch.tensor([[[2.0, 1.0, 3.0, 1.0, 1.0, 0.0], [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]]]), 2, "float32")
@settings(deadline=None)
@given(rows(), st.integers(1, 9), st.sampled_from(["float64", "float32", "float16", "bfloat16"]))
def test_the_largest_are_those_of_a_stable_sort_in_torch(scores, count, dtype):
    for each in (scores.to(getattr(torch, dtype)), scores.to(getattr(torch, dtype)).mT):
        few = min(count, each.shape[2])
        assert torch.equal(selection.top_indices(each, few), by_a_sort(each, few))


@pytest.mark.parametrize("count", [1, 2, 7, 25, 98, 99, 196])
def test_long_rows(count):
    scores = torch.rand(4, 8, 196, generator=torch.Generator().manual_seed(0))
    coarse = (8 * scores).round()
    mixed = torch.where(torch.arange(8)[:, None] == 3, coarse, scores)  # one row of eight has equal entries
    for each in (scores, coarse, mixed, scores.requires_grad_()):
        assert torch.equal(selection.top_indices(each, count), by_a_sort(each, count))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_operator_is_what_a_compiler_takes_it_for(count):
    """Its results lie in memory as those of its fake do, also for columns."""
    scores = (4 * torch.rand(2, 9, 7, generator=torch.Generator().manual_seed(1))).round()
    for each in (scores, scores.mT):
        torch.library.opcheck(selection._top_indices, (each, count), test_utils=("test_schema", "test_faketensor"))
