"""Batch-level Expert Choice by loops over the tokens of a pool, and what its predictor leads to.

The loops follow `forward_train`, `update_threshold` and `forward_eval` of the authors (KwaiVGI/DiffMoE, models/models_DiffMoE.py).
"""

from dataclasses import replace

import numpy as np
from properties import holds
from strategies import seeds

from moespec.spec import ROUTERS, capacity_logits

ROUTER = ROUTERS["batch_expert_choice"]
T, E, D, C = 6, 3, 4, 2


def trained(B, params, x, thresholds):
    """What a step returns, and the weights at evaluation with the thresholds after it, in both readings."""
    router, of = B.ROUTERS[ROUTER.name], ROUTER.options(width=D, experts=E, tokens=T, threshold_decay=0.25)
    output = router.route(params, x, of, state=thresholds, train=True)
    new = router.update(of, thresholds, output.statistics)
    outputs = {"now": output, "after": router.route(params, x, of, state=new)}
    outputs["above"] = router.route(params, x, replace(of, eval_take="above"), state=new)
    weights = {name: each.routing.dense().combine.sum(-1) for name, each in outputs.items()}
    return {**weights, **new, "loss": output.losses["predictor"]}


@holds(wrong=("chosen_at_evaluation", "taken_by_prediction"), seed=seeds)
def test_it_is_what_the_authors_compute(B, seed):
    random = np.random.default_rng(seed)
    x, params = random.normal(size=(2, T, D)), ROUTER.init(random, ROUTER.options(width=D, experts=E, tokens=T))
    found = B.run(trained, params=params, x=x, thresholds={"thresholds": np.full(E, 0.5)})
    powers = np.exp(x @ params["kernel"])
    scores, hidden = powers / powers.sum(-1, keepdims=True), x @ params["w1"]
    predicted = 1 / (1 + np.exp(-(hidden / (1 + np.exp(-hidden))) @ params["w2"]))
    target = np.zeros((2, T, E))
    for g, e in np.ndindex(2, E):
        target[g, np.argsort(-scores[g, :, e])[:C], e] = 1
    reached = np.sort(predicted, axis=1)[:, -C].mean(axis=0)
    thresholds = 0.25 * 0.5 + 0.75 * reached
    loss = -np.mean(np.log(np.where(target > 0, predicted, 1 - predicted)))
    for name, want in (("now", scores * target), ("thresholds", thresholds), ("loss", loss)):
        np.testing.assert_allclose(found[name], want, rtol=1e-6, atol=1e-9)
    taken = np.zeros_like(target)
    for g, e in np.ndindex(2, E):
        as_many = int((predicted[g, :, e] > thresholds[e]).sum())
        taken[g, np.argsort(-scores[g, :, e])[:as_many], e] = 1
    for name, mask in (("after", taken), ("above", predicted > thresholds)):
        np.testing.assert_allclose(found[name], scores * mask, rtol=1e-6, atol=1e-9)


def test_the_predictor_sends_no_gradient_to_the_tokens():
    params = ROUTER.init(np.random.default_rng(0), ROUTER.options(width=D, experts=E, tokens=T))
    arrays = {name: params[name] for name in ("w1", "b1", "w2", "b2")}
    assert not np.imag(capacity_logits(np.ones((T, D)) + 1e-30j, **arrays)).any()
