"""Section 7 and 8.7: the routers that select, which are compositions of an affinity and an allocation."""

import numpy as np
from properties.implementations import holds
from properties.strategies import one_of, seeds

GROUPS, T, E, D = 2, 6, 3, 4
TOKEN_CHOICE = ("softmax_token_choice", "sinkhorn_token_choice", "sparsity_constrained_token_choice")
EXPERT_CHOICE = ("softmax_expert_choice", "sinkhorn_expert_choice", "sparsity_constrained_expert_choice")
SPARSE = one_of(*TOKEN_CHOICE, *EXPERT_CHOICE)
SOME = one_of("sinkhorn_token_choice", "sparsity_constrained_expert_choice")
SINKHORN = one_of("sinkhorn_token_choice", "sinkhorn_expert_choice")


def route(module, tokens, params, noise=None, *, name, **fields):
    """What a router returns, as arrays."""
    router = module.ROUTERS[name]
    config = router.options(tokens=tokens.shape[1], width=tokens.shape[2], experts=E, **fields)
    output = router.route(params, tokens, config, noise=noise)
    dense = output.routing.dense()
    return {"dispatch": dense.dispatch, "combine": dense.combine, "losses": output.losses, "metrics": output.metrics}


def drawn(seed):
    """tokens, kernel and noise."""
    random = np.random.default_rng(seed)
    return random.normal(size=(GROUPS, T, D)), random.normal(size=(D, E)), random.normal(size=(GROUPS, T, E))


def routed(B, name, seed, *, noisy=True, **fields):
    """The router on random tokens."""
    tokens, kernel, noise = drawn(seed)
    given = {"noise": noise} if noisy else {}
    fields = {"noise_multiplier": 1.0, **fields}  # which is not the default of every router
    return B.run(route, tokens=tokens, params={"kernel": kernel}, **given, name=name, **fields)


def softmax_of(B, seed, *, noisy=True):
    """The softmax of the (noisy) logits."""
    tokens, kernel, noise = drawn(seed)
    return B.softmax_affinity(B.add_gating_noise(B.router_logits(tokens, kernel), noise if noisy else None))


@holds(wrong="plan_combines", name=SPARSE, seed=seeds)
def test_combine_is_the_softmax_of_the_noisy_logits_where_dispatch_is_one(B, name, seed):
    """`C = A * D`: a plan only selects. D is 0 or 1, a slot holds a token at most, and a token enters an expert once."""
    found = routed(B, name, seed)
    dispatch, combine = found["dispatch"], found["combine"]
    np.testing.assert_allclose(combine, dispatch * softmax_of(B, seed)[..., None], rtol=1e-12)
    assert set(np.unique(dispatch)) <= {0, 1}
    assert (dispatch.sum(axis=1) <= 1).all()
    assert (dispatch.sum(axis=3) <= 1).all()
    assert (combine.sum(axis=(2, 3)) <= 1 + 1e-12).all()


@holds(wrong="raw_utility", name=SPARSE, seed=seeds)
def test_a_router_is_its_affinity_and_its_allocation(B, name, seed):
    """Dispatch is the allocation by the softmax, by its Sinkhorn plan or by its sparsity-constrained plan."""
    tokens, kernel, noise = drawn(seed)
    noisy = B.add_gating_noise(B.router_logits(tokens, kernel), noise)
    scores = B.softmax_affinity(noisy)
    if name.startswith("sinkhorn"):
        scores = B.sinkhorn_affinity(noisy)
    by_tokens = name in TOKEN_CHOICE
    if name.startswith("sparsity"):
        constraint = {"capacity": 1, "sparsity": "token"} if by_tokens else {"capacity": 2}
        scores = B.sparse_transport_affinity(scores, **constraint)
    expected = B.token_choice(scores, choices=1, capacity=2) if by_tokens else B.expert_choice(scores, capacity=2)
    np.testing.assert_array_equal(routed(B, name, seed)["dispatch"], expected.dispatch)


@holds(wrong="softmax_combines", name=SINKHORN, seed=seeds)
def test_the_ablation_combines_with_the_plan(B, name, seed):
    """`combine_with="plan"` changes C, not D."""
    tokens, kernel, noise = drawn(seed)
    found = routed(B, name, seed, combine_with="plan")
    plan = B.sinkhorn_affinity(B.add_gating_noise(B.router_logits(tokens, kernel), noise))
    np.testing.assert_array_equal(found["dispatch"], routed(B, name, seed)["dispatch"])
    np.testing.assert_allclose(found["combine"], found["dispatch"] * plan[..., None], rtol=1e-12)


@holds(wrong="noisy_logits_combine", name=SINKHORN, seed=seeds)
def test_combine_weights_may_ignore_the_noise(B, name, seed):
    """`combine_from_clean_logits` changes C, not D."""
    found = routed(B, name, seed, combine_from_clean_logits=True)
    np.testing.assert_array_equal(found["dispatch"], routed(B, name, seed)["dispatch"])
    clean = softmax_of(B, seed, noisy=False)
    np.testing.assert_allclose(found["combine"], found["dispatch"] * clean[..., None], rtol=1e-12)


@holds(wrong="multiplier_of_zero_is_one", name=SOME, seed=seeds)
def test_noise_multiplied_by_zero_is_none(B, name, seed):
    quiet, without = routed(B, name, seed, noise_multiplier=0.0), routed(B, name, seed, noisy=False)
    for tensor in ("dispatch", "combine"):
        np.testing.assert_array_equal(quiet[tensor], without[tensor])


@holds(wrong="losses_not_weighted", name=one_of("sinkhorn_token_choice"), seed=seeds)
def test_losses_are_weighted_and_reported_without_weights(B, name, seed):
    """Each loss is its weight times what the metrics report, and those with a weight of 0 are left out."""
    weights = {"importance": 0.5, "load": 0.25, "balance": 2.0, "z": 0.125}
    found = routed(B, name, seed, **{f"{loss}_weight": weight for loss, weight in weights.items()})
    assert found["losses"].keys() == weights.keys()
    for loss, weight in weights.items():
        np.testing.assert_allclose(found["losses"][loss], weight * found["metrics"][f"{loss}_loss"], rtol=1e-12)
        assert found["losses"][loss] >= 0
    none = dict.fromkeys((f"{loss}_weight" for loss in weights), 0.0)
    assert not routed(B, name, seed, **none)["losses"]


@holds(wrong="raw_utility", seed=seeds)
def test_up_to_a_factor_of_one_no_slot_needs_a_token_without_a_plan(B, seed):
    """With k <= T / E a column of the plan has k positive entries, so that dropping the others drops nothing."""
    name = "sparsity_constrained_expert_choice"
    kept, dropped = (routed(B, name, seed, drop_zero_plan=drop) for drop in (False, True))
    np.testing.assert_array_equal(dropped["dispatch"], kept["dispatch"])
    assert (kept["dispatch"].sum(axis=1) == 1).all()
