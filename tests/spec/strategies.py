"""The strategies of properties. Arrays have a leading axis of two groups.

Scores lie on a grid of quarters, so that ties are frequent and meant; where a property needs numbers in general position, they are
random, from a seed.
"""

from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as extra
from numpy.typing import NDArray

Array = NDArray[Any]
GROUPS = 2

SHAPES = ((1, 1), (1, 3), (4, 1), (4, 2), (6, 3), (8, 4), (5, 6))
"""(tokens, experts)."""


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


def one_of(*options: Any) -> Any:
    """One of the options."""
    return st.sampled_from(options)


def _slots(scores: Array) -> Any:
    tokens, experts = scores.shape[1:]
    return st.builds(Slots, st.just(scores), st.integers(1, experts), st.integers(1, tokens))


seeds = st.integers(0, 2**16)
"""For `np.random.default_rng`."""
logits = one_of(*SHAPES).flatmap(lambda shape: grid(GROUPS, *shape))
"""(groups, tokens, experts)."""
even_logits = logits.filter(lambda scores: scores.shape[1] % scores.shape[2] == 0)
"""(groups, tokens, experts), with as many tokens for each expert."""

slots = logits.flatmap(_slots)
"""Scores with ties."""
spread_slots = one_of(*SHAPES).flatmap(
    lambda shape: seeds.map(lambda seed: np.random.default_rng(seed).normal(size=(GROUPS, *shape))).flatmap(_slots)
)
"""Scores in general position, standard normal."""


def orders(size: int, seed: int) -> Array:
    """A permutation for each group, (groups, size)."""
    return np.random.default_rng(seed).permuted(np.tile(np.arange(size, dtype=np.int32), (GROUPS, 1)), axis=1)
