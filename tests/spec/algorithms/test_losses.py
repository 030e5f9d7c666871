"""The balance loss: that of a batch, and how low it can be."""

import numpy as np
import pytest

from moespec.spec import balance_loss


@pytest.mark.parametrize("name", ["numpy", "jax", "torch"])
def test_the_balance_loss_of_a_batch_in_a_router_is_that_of_one_group(name):
    B = pytest.importorskip(f"moespec.backends.{name}")
    router, tokens = B.ROUTERS["switch"], np.random.default_rng(0).standard_normal((3, 5, 4)).astype(np.float32)
    losses = []
    for groups, scope in ((3, "batch"), (3, "global"), (1, "group"), (3, "group")):
        options = router.options(width=4, experts=4, tokens=15 // groups, balance_weight=1.0, balance_scope=scope)
        arrays = B.from_numpy([np.eye(4, dtype=np.float32), tokens.reshape(groups, -1, 4)])
        losses.append(float(router.route({"kernel": arrays[0]}, arrays[1], options).losses["balance"]))
    assert losses[:2] == pytest.approx([losses[2]] * 2, rel=1e-6)
    assert losses[3] != pytest.approx(losses[2], rel=1e-2)


@pytest.mark.parametrize("experts", [2, 3, 8, 64])
def test_the_balance_loss_can_be_below_1(experts):
    barely = np.full((experts + 1, experts), 1 / experts) + 1e-9 * np.eye(experts)[[0] * (experts + 1)]
    certain = np.eye(experts)[1:]
    expected = 0.75 + 0.25 / experts
    assert balance_loss(np.vstack([barely, certain])) == pytest.approx(expected, abs=1e-6)
    less, more = (np.vstack([barely[:-1], certain]), np.vstack([barely, barely[:1], certain]))
    assert min(balance_loss(less), balance_loss(more)) > expected
