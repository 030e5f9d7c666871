"""The strategies of properties. Arrays have a leading axis of two groups.

Every strategy is a function of `few`: a few shapes and options, each of which a backend compiles once, or many. Scores
lie on a grid of quarters, so that ties are frequent and meant; where a property needs numbers in general position, they are
random, from a seed.
"""

from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as extra
from numpy.typing import NDArray

__all__ = [
    "GROUPS", "even_logits", "grid", "integers", "logits", "number", "one_of", "orders", "seeds", "shuffled", "slots", "spread",
    "spread_slots",
]  # fmt: skip

Array = NDArray[Any]
GROUPS = 2

FEW = {(6, 3): (2, 2), (4, 5): (3, 1)}
"""(tokens, experts) -> (choices, capacity)."""
MANY = ((1, 1), (1, 3), (4, 1), (4, 2), (6, 3), (8, 4), (5, 6))


class Slots(NamedTuple):
    """Scores (groups, tokens, experts), and how many experts a token and how many tokens an expert takes."""

    scores: Array
    choices: int
    capacity: int

    @property
    def tokens(self) -> int:
        """How many."""
        return self.scores.shape[1]

    @property
    def experts(self) -> int:
        """How many."""
        return self.scores.shape[2]


def grid(*shape: int, reach: int = 12) -> Any:
    """Quarters from `-reach / 4` to `reach / 4`."""
    values = extra.arrays(np.int64, shape, elements=st.integers(-reach, reach), fill=st.nothing())
    return values.map(lambda integers: integers / 4)


def shapes(few: bool) -> Any:
    """(tokens, experts)."""
    return st.sampled_from(list(FEW) if few else MANY)


def logits(few: bool) -> Any:
    """(groups, tokens, experts)."""
    return shapes(few).flatmap(lambda shape: grid(GROUPS, *shape))


def even_logits(few: bool) -> Any:
    """(groups, tokens, experts), with as many tokens for each expert."""
    even = [shape for shape in (FEW if few else MANY) if shape[0] % shape[1] == 0]
    return st.sampled_from(even).flatmap(lambda shape: grid(GROUPS, *shape))


def spread(few: bool) -> Any:
    """Standard normal (groups, tokens, experts)."""
    return st.builds(
        lambda shape, seed: np.random.default_rng(seed).normal(size=(GROUPS, *shape)), shapes(few), seeds(few)
    )


@st.composite
def _slots(draw: Any, values: Any, few: bool) -> Slots:
    scores = draw(values(few))
    tokens, experts = scores.shape[1:]
    return Slots(scores, *(FEW[tokens, experts] if few else draw(counts(tokens, experts))))


def counts(tokens: int, experts: int) -> Any:
    """(choices, capacity), each at most what there is."""
    return st.tuples(st.integers(1, experts), st.integers(1, tokens))


def slots(few: bool) -> Any:
    """Scores with ties."""
    return _slots(logits, few)


def spread_slots(few: bool) -> Any:
    """Scores in general position."""
    return _slots(spread, few)


def seeds(few: bool) -> Any:
    """For `np.random.default_rng`."""
    return st.integers(0, 2**16)


def orders(size: int, seed: int) -> Array:
    """A permutation for each group, (groups, size)."""
    return np.random.default_rng(seed).permuted(np.tile(np.arange(size, dtype=np.int32), (GROUPS, 1)), axis=1)


def shuffled(size: int, seed: int) -> Array:
    """A permutation of `0 .. size - 1`."""
    return np.random.default_rng(seed).permutation(size)


def integers(low: int, high: int) -> Any:
    """Integers from `low` to `high`; with `few` only these two."""
    return lambda few: st.sampled_from([low, high]) if few else st.integers(low, high)


def one_of(*options: Any) -> Any:
    """One of the options."""
    return lambda few: st.sampled_from(options)


def number(*options: float) -> Any:
    """One of the numbers, that are options; with `few` the first."""
    return lambda few: st.sampled_from(options[:1] if few else options)
