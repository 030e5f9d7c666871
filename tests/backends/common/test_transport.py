"""The sparse plan as combine weights carries no gradient in the compiled backends."""

import importlib

import numpy as np
import pytest

ROUTERS = ("sparsity_constrained_expert_choice", "sparsity_constrained_token_choice")
RANDOM = np.random.default_rng(0)
TOKENS = RANDOM.normal(size=(2, 6, 4)).astype(np.float32)
KERNEL = RANDOM.normal(size=(4, 3)).astype(np.float32)


@pytest.mark.parametrize("objective", ["semi_dual", "dual"])
@pytest.mark.parametrize("name", ["jax", "torch"])
@pytest.mark.parametrize("router", ROUTERS)
def test_the_plan_that_combines_carries_no_gradient(router, name, objective):
    pytest.importorskip(name)
    B = importlib.import_module(f"moespec.backends.{name}")
    router = B.ROUTERS[router]

    def loss(params, tokens, combine_with):
        options = router.options(width=4, experts=3, tokens=6, combine_with=combine_with, transport_objective=objective)
        return B.sum(params["factor"] * router.route(params, tokens, options).routing.weight), {}

    params, tokens = B.from_numpy({"kernel": KERNEL, "factor": np.float32(2)}), B.from_numpy(TOKENS)
    for combine_with, is_flat in (("plan", True), ("softmax", False)):
        (value, _), slopes = B.value_and_grad(lambda p, x, way=combine_with: loss(p, x, way))(params, tokens)
        assert float(value) > 0
        assert bool((B.to_numpy(slopes["kernel"]) == 0).all()) == is_flat
