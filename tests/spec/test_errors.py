"""Errors that no vector has, of routings, and arrays of every dtype.

Those that follow from signatures are in tests/conformance/golden/test_derived.py.
"""

import numpy as np
import pytest

from moespec import spec
from moespec.spec import ContractError, DtypeError, Routing, ShapeError
from moespec.spec.examples import LOGITS

SLOTS = np.ones((6, 3, 2))
MLP = {"w1": np.ones((3, 2, 4)), "b1": np.ones((3, 4)), "w2": np.ones((3, 4, 2)), "b2": np.ones((3, 2))}
OF_ROUTINGS = {
    "moe_layer": lambda routing: spec.moe_layer(LOGITS, routing, lambda inputs: inputs),
    "moe_mlp": lambda routing: spec.moe_mlp(np.ones((6, 2)), routing, MLP),
    "collapse_metrics": spec.collapse_metrics,
    "cumulative_dispatch": spec.cumulative_dispatch,
    "experts_per_token": spec.experts_per_token,
    "routing_metrics": spec.routing_metrics,
    "summed_dispatch": spec.summed_dispatch,
}


@pytest.mark.parametrize("name", OF_ROUTINGS)
@pytest.mark.parametrize("part", ["dispatch", "combine"])
def test_tensors_of_a_routing(name, part):
    """In a vector they come from an allocation."""
    OF_ROUTINGS[name](Routing(SLOTS, SLOTS))
    infinite = SLOTS.copy()
    infinite[-1, -1, -1] = np.inf
    for wrong, kind, words in (
        (infinite, ContractError, "(5, 2, 1) is inf"),
        (SLOTS.astype(int), DtypeError, "int64"),
        (SLOTS[0], ShapeError, "(3, 2)"),
        (SLOTS[None], ShapeError, "(1, 6, 3, 2)"),
        (SLOTS[:, :, :0], ShapeError, "(6, 3, 0)"),
        (np.concatenate([SLOTS, SLOTS], axis=2), ShapeError, "(6, 3, 4)"),
    ):
        with pytest.raises(kind) as error:
            OF_ROUTINGS[name](Routing(**{"dispatch": SLOTS, "combine": SLOTS, part: wrong}))
        assert part in str(error.value)
        assert words in str(error.value)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "complex64"])
def test_every_dtype_gives_64_bits(dtype):
    given = pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype
    assert spec.softmax_affinity(LOGITS.astype(given)).dtype == (np.complex128 if dtype == "complex64" else np.float64)
