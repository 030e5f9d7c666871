"""What holds of every algorithm: groups are independent, nothing is random, and zeros of both signs are equal."""

import numpy as np
from implementations import holds
from strategies import seeds, slots, spread
from wrong import coupled, random


def everything(module, logits, noise, slots, *, choices=1, capacity=1):
    """The results of every function that keeps its groups apart."""
    scores = module.softmax_affinity(logits)
    hard = module.token_choice(logits, choices=choices, capacity=capacity).dense()
    chosen = module.expert_choice(logits, capacity=capacity).dense()
    plan = module.transport_semi_dual(logits[:, :, 0], scores, capacity=capacity)
    return {
        "noisy": module.add_gating_noise(logits, noise),
        "softmax": scores,
        "sinkhorn": module.sinkhorn_affinity(logits, iterations=3),
        "transport": module.sparse_transport_affinity(scores, capacity=capacity, steps=3),
        "semi_dual": plan.value,
        "soft_routing": module.soft_routing(logits, slots).combine,
        "order": module.batch_priority(logits),
        "token_choice": hard.combine,
        "expert_choice": chosen.combine,
    }


def arguments(logits, seed):
    """The other arguments of `everything`."""
    random = np.random.default_rng(seed)
    return {"noise": random.normal(size=logits.shape), "slots": random.normal(size=(logits.shape[2], 3, 2))}


@holds(wrong=coupled("softmax_affinity"), logits=spread, seed=seeds)
def test_groups_are_routed_independently(B, logits, seed):
    """The results of a group do not depend on the other groups."""
    others = arguments(logits, seed)
    results = B.run(everything, logits=logits, **others)
    other = logits.copy()
    other[0] = np.random.default_rng(seed + 1).normal(size=logits.shape[1:])
    changed = B.run(everything, logits=other, **others)
    others["noise"] = others["noise"][::-1].copy()
    exchanged = B.run(everything, logits=logits[::-1].copy(), **others)
    for name, result in results.items():
        np.testing.assert_allclose(changed[name][1:], result[1:], rtol=1e-12, err_msg=name)
        np.testing.assert_allclose(exchanged[name][::-1], result, rtol=1e-12, err_msg=name)


@holds(wrong=random("softmax_affinity"), logits=spread, seed=seeds)
def test_nothing_is_random(B, logits, seed):
    """The same arguments give the same bits."""
    one, other = (B.run(everything, logits=logits, **arguments(logits, seed)) for _ in range(2))
    for name, result in one.items():
        np.testing.assert_array_equal(other[name], result, err_msg=name)


@holds(wrong="positive_zero_before_negative", problem=slots, seed=seeds)
def test_zero_and_minus_zero_are_equal(B, problem, seed):
    """Which of them a score is decides nothing."""
    scores, choices, capacity = problem
    scores = np.where(np.abs(scores) < 1, 0.0, scores)
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=scores.shape)
    signed = np.where(scores == 0, signs * 0.0, scores)

    def decisions(scores):
        yield B.token_choice(scores, choices=choices, capacity=capacity).dispatch
        yield B.expert_choice(scores, capacity=capacity).dispatch
        yield B.batch_priority(scores)
        yield B.project_sparse_simplex(scores[:, 0], nonzeros=choices) > 0

    for plain, other in zip(decisions(scores), decisions(signed), strict=True):
        np.testing.assert_array_equal(other, plain)
