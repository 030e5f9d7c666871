"""The largest entries of a row are those of a stable sort, in its order, whatever the entries."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from moespec.backends.torch import selection  # noqa: E402
from moespec.backends.torch.selection import top_indices  # noqa: E402

DTYPES = ["float64", "float32", "float16", "bfloat16"]
ENTRIES = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, 1.0 + 2**-20, -2.5, 3e-39]
"""So few that most rows hold an entry twice; two of them are equal in 16 bits."""


def by_a_sort(scores, count):
    return torch.sort(scores, dim=-1, descending=True, stable=True).indices[..., :count].int()


@st.composite
def rows(draw):
    groups, tokens, experts = draw(st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 9)))
    entries = draw(
        st.lists(st.sampled_from(ENTRIES), min_size=groups * tokens * experts, max_size=groups * tokens * experts)
    )
    return torch.tensor(entries, dtype=torch.float64).reshape(groups, tokens, experts)


INF = float("inf")


@example(torch.full((1, 2, 5), -INF), 2, "float32")
@example(torch.tensor([[[-INF, 1.0, -INF, -INF, -INF, -INF]]]), 2, "float32")
@example(torch.tensor([[[2.0, 1.0, 3.0, 1.0, 1.0, 0.0], [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]]]), 2, "float32")
@settings(deadline=None)
@given(rows(), st.integers(1, 9), st.sampled_from(DTYPES))
def test_the_largest_are_those_of_a_stable_sort(scores, count, dtype):
    scores, count = scores.to(getattr(torch, dtype)), min(count, scores.shape[2])
    assert torch.equal(top_indices(scores, count), by_a_sort(scores, count))
    columns = scores.mT
    count = min(count, columns.shape[2])
    assert torch.equal(top_indices(columns, count), by_a_sort(columns, count))


@pytest.mark.parametrize("count", [1, 2, 7, 25, 98, 99, 196])
def test_long_rows(count):
    scores = torch.rand(4, 8, 196, generator=torch.Generator().manual_seed(0))
    coarse = (8 * scores).round()
    mixed = torch.where(torch.arange(8)[:, None] == 3, coarse, scores)  # one row of eight has equal entries
    for each in (scores, coarse, mixed, scores.requires_grad_()):
        assert torch.equal(top_indices(each, count), by_a_sort(each, count))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_operator_is_what_a_compiler_takes_it_for(count):
    """Its results lie in memory as those of its fake do, also for columns."""
    scores = (4 * torch.rand(2, 9, 7, generator=torch.Generator().manual_seed(1))).round()
    for each in (scores, scores.mT):
        torch.library.opcheck(selection._top_indices, (each, count), test_utils=("test_schema", "test_faketensor"))


def test_compiled():
    scores = (4 * torch.rand(2, 5, 9, generator=torch.Generator().manual_seed(1))).round()
    both = torch.compile(lambda x: (top_indices(x, 1), top_indices(x, 3)), backend="eager", fullgraph=True)
    for found, count in zip(both(scores), (1, 3), strict=True):
        assert torch.equal(found, by_a_sort(scores, count))
