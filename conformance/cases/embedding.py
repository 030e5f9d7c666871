"""Cases of the token embedding."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from moespec.conformance.author.definition import Definition, single, tensor
from moespec.conformance.author.inputs import grid
from moespec.conformance.author.variant import Variant, scaled

NAME = "embedding"


def cases() -> Iterator[Definition]:

    def case(name: str, kind: str, purpose: str, ids: Any, vocabulary: int, *flags: str) -> Definition:
        table = tensor(grid(f"{NAME}/{name}", (vocabulary, 3), reach=1.0), "ids width")
        return partial(single, NAME, NAME)(name, kind, purpose, *flags, ids=tensor(ids, "groups tokens"), table=table)

    several = [[3, 0, 3, 2], [4, 4, 0, 3]]
    yield case("rows", "value", "The row of each id; one is there several times, one never.", several, 5)
    yield case("one", "degenerate", "One token of the only id.", [[0]], 1, "degenerate_size")
    yield case("gradient", "gradient", "A row's gradient is a sum over its tokens, of all groups.", several, 5)


def variants() -> Iterator[Variant]:
    computes = "Embeddings are multiplied by the root of their width."
    yield scaled("times_root_of_width", computes, "EM-1b", embedding=lambda table, **_: np.sqrt(table.shape[1]))
