"""Variable numbers of experts per token against loops over tokens and experts, for three steps of training and one of evaluation."""

import importlib

import numpy as np
import pytest
from hypothesis import strategies as st
from properties import holds
from strategies import seeds

from moespec.spec import ROUTERS, ConfigError

GROUPS, TOKENS, WIDTH, EXPERTS, K, STEPS = 2, 5, 3, 4, 2, 3
P, GAIN, INTEGRAL, DECAY, WARMUP = 0.5, 0.75, 0.5, 0.75, 2
CUTOFFS = {"choices": K, "cutoff_decay": DECAY}
RULES = {
    "top_p": {"choices": K, "p": P, "gain": GAIN, "integral_gain": INTEGRAL, "gate": "normalized_softmax"},
    "pooled": {**CUTOFFS, "gate": "identity", "eval_cutoff": True},
    "threshold": {**CUTOFFS, "warmup_steps": WARMUP},
}


def trained(B, kernel, x, budget):
    """The combine weights of three steps of training and of the evaluation after them."""
    router = B.ROUTERS["variable_budget"]
    options = router.options(width=WIDTH, experts=EXPERTS, tokens=TOKENS, budget=budget, **RULES[budget])
    state = {name: np.zeros(spec.shape) for name, spec in router.state(options).items()}
    weights = {}
    for step in range(STEPS + 1):
        output = router.route({"kernel": kernel}, x[step], options, state=state, train=step < STEPS)
        weights[str(step)] = output.routing.dense().combine.sum(-1)
        state = router.update(options, state, output.statistics)
    return weights


def best(scores):
    """The indices of the scores, the largest first."""
    return sorted(range(len(scores)), key=lambda each: -scores[each])


@holds(wrong=("average_from_zero", "added_to_the_current_p"), seed=seeds, budget=st.sampled_from(sorted(RULES)))
def test_loops_over_tokens_and_experts(B, seed, budget):
    random = np.random.default_rng(seed)
    x, kernel = random.normal(size=(STEPS + 1, GROUPS, TOKENS, WIDTH)), random.normal(size=(WIDTH, EXPERTS))
    found = B.run(trained, kernel=kernel, x=x, budget=budget)
    p, errors, steps = P, [], []  # of top-p, and the cutoffs of each step
    for step in range(STEPS + 1):
        logits, mask = x[step] @ kernel, np.zeros((GROUPS, TOKENS, EXPERTS))
        soft = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
        powers = [DECAY ** (len(steps) - 1 - past) for past in range(len(steps))]
        cutoff = sum(w * c for w, c in zip(powers, steps, strict=True)) / sum(powers) if steps else None
        train = step < STEPS
        if budget == "top_p":
            for g, t in np.ndindex(GROUPS, TOKENS):
                chosen = best(soft[g, t])
                while len(chosen) > 1 and sum(soft[g, t, e] for e in chosen[:-1]) >= p:
                    chosen.pop()
                mask[g, t, chosen] = 1
            errors.append((K - mask.sum() / GROUPS / TOKENS) / EXPERTS)
            p = P + GAIN * errors[-1] + INTEGRAL * sum(errors)
            weights = soft * mask / (soft * mask).sum(axis=2, keepdims=True)
        else:
            count = K * TOKENS if budget == "pooled" else K * TOKENS // EXPERTS
            columns = [logits[g].reshape(-1, 1) if budget == "pooled" else logits[g] for g in range(GROUPS)]
            own = train if budget == "pooled" else train and step < WARMUP
            for g, column in enumerate(columns):
                taken = np.zeros(column.shape)
                for e in range(column.shape[1]):
                    taken[best(column[:, e])[:count], e] = 1
                mask[g] = (taken if own else column > cutoff).reshape(TOKENS, EXPERTS)
            steps.append(np.mean([np.sort(column, axis=0)[-count] for column in columns], axis=0))
            weights = mask * (logits if budget == "pooled" else 1 / (1 + np.exp(-logits)))
        np.testing.assert_allclose(found[str(step)], weights, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("budget", "name", "value"),
    [
        *(("pooled", "p", 0.5), ("threshold", "gain", 1.0), ("pooled", "integral_gain", 1.0)),
        *(("top_p", "eval_cutoff", True), ("pooled", "warmup_steps", 1)),
    ],
)
def test_an_option_of_another_budget_is_refused(budget, name, value):
    with pytest.raises(ConfigError, match=f"^{name}={value}: expected .* with budget='{budget}'"):
        ROUTERS["variable_budget"].options(width=4, experts=3, tokens=8, budget=budget, **{name: value})


@pytest.mark.parametrize("name", ["numpy", "jax", "torch"])
def test_a_chosen_pair_keeps_its_slot_if_its_score_underflows(name):
    if name != "numpy":
        pytest.importorskip(name)
    B = importlib.import_module(f"moespec.backends.{name}")
    arrays = B.from_numpy({"scores": np.zeros((1, 2, 1), np.float32), "mask": np.array([[[True], [False]]])})
    kept = B.to_numpy(B.expert_choice(B.kept_scores(**arrays), capacity=2, drop_zero=True).token)
    assert kept.tolist() == [[[0, 2]]]
