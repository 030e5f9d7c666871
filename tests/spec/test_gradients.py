"""The specification differentiates itself: the complex step against central differences, for every function.

`f(x + 1e-30i v).imag / 1e-30` is the derivative of f along v without rounding of differences, as long as nothing in f
drops the imaginary part; the central difference shows that nothing does.
"""

import numpy as np
import pytest

from moespec import spec
from moespec.spec import ROUTERS, Routing
from moespec.spec.numerics import normal_cdf, positive_part, softplus, stop_gradient

STEP = 1e-30
RANDOM = np.random.default_rng(0)


def draw(*shape, scale=1.0):
    return scale * RANDOM.normal(size=shape)


LOGITS, NOISE, WEIGHTS = draw(6, 3), draw(6, 3), draw(6, 3)
UTILITY = spec.softmax_affinity(LOGITS)
UNTIED = LOGITS + NOISE / 3
TOKENS = draw(6, 4)
SPARSE = spec.token_choice(UTILITY, choices=2, capacity=3)
SOFT = spec.soft_routing(TOKENS, draw(4, 3, 2))
TARGETS = RANDOM.dirichlet(np.ones(3), size=6)
MLP = {"w1": draw(3, 4, 5), "b1": draw(3, 5), "w2": draw(3, 5, 4), "b2": draw(3, 4)}


def mlp(inputs, w1, b1, w2, b2, gelu="tanh"):
    return spec.expert_mlp(inputs, {"w1": w1, "b1": b1, "w2": w2, "b2": b2}, gelu=gelu)


def layer(tokens, dispatch, combine, **params):
    return spec.moe_layer(tokens, Routing(dispatch, combine), lambda inputs: mlp(inputs, **params))


def both(routing):
    return np.stack([routing.dispatch, routing.combine])


# name -> function, the arrays that it is differentiated in
CASES = {
    "router_logits": (spec.router_logits, {"tokens": TOKENS, "kernel": draw(4, 3)}),
    "add_gating_noise": (spec.add_gating_noise, {"logits": LOGITS, "noise": NOISE}),
    "softmax_affinity": (spec.softmax_affinity, {"logits": LOGITS}),
    "softmax_affinity, large": (spec.softmax_affinity, {"logits": 30 * LOGITS}),
    "sinkhorn_affinity": (spec.sinkhorn_affinity, {"logits": LOGITS}),
    "sinkhorn_affinity, 1": (lambda logits: spec.sinkhorn_affinity(logits, iterations=1), {"logits": LOGITS}),
    "sinkhorn_affinity, tol": (lambda logits: spec.sinkhorn_affinity(logits, tolerance=1e-3), {"logits": LOGITS}),
    "token_choice": (lambda s: spec.token_choice(s, choices=2, capacity=3).combine, {"s": LOGITS}),
    "token_choice, combine": (
        lambda w: spec.token_choice(LOGITS, choices=2, capacity=3, combine_scores=w).combine,
        {"w": WEIGHTS},
    ),
    "expert_choice": (lambda s: spec.expert_choice(s, capacity=3).combine, {"s": LOGITS}),
    "expert_choice, combine": (
        lambda w: spec.expert_choice(LOGITS, capacity=3, combine_scores=w).combine,
        {"w": WEIGHTS},
    ),
    "importance_score_choice": (
        lambda s: spec.importance_score_choice(s, choices=2, capacity=3, drop=0.2).combine,
        {"s": LOGITS},
    ),
    "importance_score_choice, combine": (
        lambda w: spec.importance_score_choice(LOGITS, choices=2, capacity=3, drop=0.2, combine_scores=w).combine,
        {"w": WEIGHTS},
    ),
    "rescale": (
        lambda x, w, b, v, c: spec.rescale(
            x, {"token_kernel": w, "token_bias": b, "channel_kernel": v, "channel_bias": c}
        ),
        {"x": TOKENS, "w": draw(len(TOKENS), 3), "b": draw(3), "v": draw(TOKENS.shape[1], 2), "c": draw(2)},
    ),
    "project_simplex": (spec.project_simplex, {"values": draw(7)}),
    "project_sparse_simplex": (lambda v: spec.project_sparse_simplex(v, nonzeros=3), {"v": draw(7)}),
    "semi_dual value": (
        lambda a, u: spec.transport_semi_dual(a, u, capacity=3).value,
        {"a": draw(6, scale=0.3), "u": UTILITY},
    ),
    "semi_dual gradient": (
        lambda a, u: spec.transport_semi_dual(a, u, capacity=3, regularization=0.5).gradient,
        {"a": draw(6, scale=0.3), "u": UTILITY},
    ),
    "semi_dual plan": (
        lambda a, u: spec.transport_semi_dual(a, u, capacity=3).plan,
        {"a": draw(6, scale=0.3), "u": UTILITY},
    ),
    "dual value": (
        lambda a, b, u: spec.transport_dual(a, b, u, capacity=3).value,
        {"a": draw(6, scale=0.3), "b": draw(3, scale=0.3), "u": UTILITY},
    ),
    "dual plan": (
        lambda a, b, u: spec.transport_dual(a, b, u, capacity=3).plan,
        {"a": draw(6, scale=0.3), "b": draw(3, scale=0.3), "u": UTILITY},
    ),
    "soft_routing": (
        lambda x, phi, scale: both(spec.soft_routing(x, phi, scale=scale)),
        {"x": TOKENS, "phi": draw(4, 3, 2), "scale": np.array(1.5)},
    ),
    "soft_routing, rsqrt": (
        lambda x, phi, scale: both(spec.soft_routing(x, phi, scale=scale, norm_form="rsqrt")),
        {"x": TOKENS, "phi": draw(4, 3, 2), "scale": np.array(1.5)},
    ),
    "soft_routing, not normalised": (
        lambda x, phi: both(spec.soft_routing(x, phi, normalize=False)),
        {"x": TOKENS, "phi": draw(4, 3, 2)},
    ),
    "soft_routing, uniform dispatch": (
        lambda x, phi: both(spec.soft_routing(x, phi, dispatch="uniform")),
        {"x": TOKENS, "phi": draw(4, 3, 2)},
    ),
    "soft_routing, uniform combine": (
        lambda x, phi: both(spec.soft_routing(x, phi, combine="uniform")),
        {"x": TOKENS, "phi": draw(4, 3, 2)},
    ),
    "sigmoid_affinity": (spec.sigmoid_affinity, {"logits": 4 * LOGITS}),
    "normalize_selected": (
        lambda weights: spec.normalize_selected(LOGITS, weights, choices=2),
        {"weights": UTILITY},
    ),
    "router_jitter": (spec.router_jitter, {"tokens": TOKENS, "noise": draw(6, 4)}),
    "noisy_top_k_logits": (spec.noisy_top_k_logits, {"logits": LOGITS, "noise_logits": 2 * UTILITY, "noise": NOISE}),
    "noisy_top_k_affinity": (lambda noisy: spec.noisy_top_k_affinity(noisy, choices=2), {"noisy": UNTIED}),
    "noisy_top_k_load_loss": (
        lambda clean, scales, noisy: spec.noisy_top_k_load_loss(clean, scales, noisy, choices=2),
        {"clean": LOGITS, "scales": 2 * UTILITY, "noisy": UNTIED},
    ),
    "hierarchical_affinity": (
        lambda noisy: spec.hierarchical_affinity(noisy, branches=3, choices=2),
        {"noisy": draw(5, 12)},
    ),
    "hierarchical_load_loss": (
        lambda clean, scales, noisy: spec.hierarchical_load_loss(clean, scales, noisy, branches=3, choices=2),
        {"clean": draw(5, 12), "scales": draw(5, 12), "noisy": draw(5, 12)},
    ),
    "masked_gates": (
        lambda gates: spec.masked_gates(gates, spec.batchwise_mask(UTILITY, capacity=3)),
        {"gates": UTILITY},
    ),
    "threshold_loss": (
        lambda gates, thresholds: spec.threshold_loss(gates, thresholds, capacity=2),
        {"gates": UTILITY, "thresholds": np.array([0.1, 0.35, 0.7])},
    ),
    "importance_loss": (spec.importance_loss, {"scores": UTILITY}),
    "load_loss": (
        lambda clean, noisy: spec.load_loss(clean, noisy, choices=2, noise_std=1 / 3),
        {"clean": LOGITS, "noisy": LOGITS + NOISE / 3},
    ),
    "balance_loss": (spec.balance_loss, {"scores": UTILITY}),
    "z_loss": (spec.z_loss, {"logits": LOGITS}),
    "expert_mlp, tanh": (mlp, {"inputs": draw(3, 2, 4), **MLP}),
    "expert_mlp, erf": (lambda **arrays: mlp(**arrays, gelu="erf"), {"inputs": draw(3, 2, 4), **MLP}),
    "moe_layer, sparse": (layer, {"tokens": TOKENS, "dispatch": SPARSE.dispatch, "combine": SPARSE.combine, **MLP}),
    "moe_layer, soft": (layer, {"tokens": TOKENS, "dispatch": SOFT.dispatch, "combine": SOFT.combine, **MLP}),
    "gelu, tanh": (spec.gelu, {"x": np.linspace(-5, 5, 11)}),
    "gelu, erf": (lambda x: spec.gelu(x, form="erf"), {"x": np.linspace(-5, 5, 11)}),
    "layer_norm": (spec.layer_norm, {"x": TOKENS, "scale": draw(4), "bias": draw(4)}),
    "attention": (spec.attention, {"query": draw(3, 2, 4), "key": draw(5, 2, 4), "value": draw(5, 2, 4)}),
    "convolution": (spec.convolution, {"images": draw(4, 3, 2), "kernel": draw(3, 3, 2, 2), "bias": draw(2)}),
    "patch_embed": (spec.patch_embed, {"images": draw(4, 6, 2), "kernel": draw(2, 2, 2, 3), "bias": draw(3)}),
    "softmax_cross_entropy": (spec.softmax_cross_entropy, {"logits": LOGITS, "targets": TARGETS}),
    "sigmoid_cross_entropy": (spec.sigmoid_cross_entropy, {"logits": 5 * LOGITS, "targets": TARGETS}),
    "numerics": (
        lambda x: np.concatenate([positive_part(x), softplus(x), normal_cdf(x)]),
        {"x": np.array([-40.0, -3.0, -0.5, 0.25, 2.0, 40.0])},
    ),
}


def derivatives(function, arrays, direction):
    """Along `direction`: the complex step's and the central difference's; and the value both start from."""
    stepped = function(**{name: arrays[name] + STEP * 1j * v for name, v in direction.items()})
    value = function(**arrays)
    np.testing.assert_allclose(np.real(stepped), value, rtol=1e-13, atol=1e-15)
    assert not np.iscomplexobj(value)
    h = 1e-6
    above = function(**{name: arrays[name] + h * v for name, v in direction.items()})
    below = function(**{name: arrays[name] - h * v for name, v in direction.items()})
    return np.imag(stepped) / STEP, (above - below) / (2 * h)


@pytest.mark.parametrize("name", CASES)
def test_complex_step(name):
    function, arrays = CASES[name]
    random = np.random.default_rng(1)
    for argument in [*arrays, None]:  # each argument alone, then all together
        chosen = arrays if argument is None else [argument]
        direction = {a: random.normal(size=np.shape(v)) if a in chosen else 0.0 * v for a, v in arrays.items()}
        exact, difference = derivatives(function, arrays, direction)
        assert np.any(exact != 0), f"no derivative in {argument}"
        np.testing.assert_allclose(exact, difference, rtol=1e-6, atol=2e-8 * max(1.0, np.max(np.abs(exact))))


def routed(name, tokens, noise, options, params):
    """All that a router returns and that carries a gradient, and the layer behind it."""
    config = ROUTERS[name].options(width=4, experts=3, tokens=6, **options)
    output = ROUTERS[name].route(params, tokens, config, noise=noise)
    result = spec.moe_layer(tokens, output.routing, lambda inputs: np.tanh(inputs))
    losses = np.array([output.losses[key] for key in sorted(output.losses)])
    return np.concatenate([result.reshape(-1), both(output.routing).reshape(-1), losses])


ALL_LOSSES = {"importance_weight": 1.0, "load_weight": 1.0, "balance_weight": 1.0, "z_weight": 1.0}
ROUTED = [
    ("softmax_token_choice", {"choices": 2, "capacity_factor": 0.75, **ALL_LOSSES}),
    ("softmax_token_choice", {"choices": 2, "batch_priority": "sum"}),
    ("sinkhorn_token_choice", {"choices": 2, **ALL_LOSSES}),
    ("sinkhorn_token_choice", {"combine_from_clean_logits": True}),
    ("sinkhorn_token_choice", {"combine_with": "plan"}),
    ("softmax_expert_choice", ALL_LOSSES),
    ("sinkhorn_expert_choice", ALL_LOSSES),
    ("sinkhorn_expert_choice", {"combine_with": "plan"}),
    ("sparsity_constrained_expert_choice", ALL_LOSSES),
    ("sparsity_constrained_expert_choice", {"drop_zero_plan": True}),
    ("sparsity_constrained_token_choice", {"choices": 2, **ALL_LOSSES}),
    ("soft_moe", {}),
    ("soft_moe", {"norm_form": "rsqrt"}),
    ("noisy_top_k", {"balance_weight": 1.0, "z_weight": 1.0}),
    ("noisy_top_k", {"capacity_factor": 0.5}),
    ("s_base", {"combine_with": "sigmoid"}),
    ("softmax_token_choice", {"choices": 2, "normalize_selected": True}),
    ("gshard", {}),
]


@pytest.mark.parametrize(("name", "options"), ROUTED)
def test_routers(name, options):
    config = ROUTERS[name].options(width=4, experts=3, tokens=6, **options)
    params = {
        key: value.astype(np.float64) for key, value in ROUTERS[name].init(np.random.default_rng(2), config).items()
    }

    def function(tokens, **params):
        noise = np.linspace(0.1, 0.9, 6) if name == "gshard" else NOISE
        return routed(name, tokens, noise, options, params)

    random = np.random.default_rng(3)
    arrays = {"tokens": TOKENS, **params}
    for argument in [*arrays, None]:
        chosen = arrays if argument is None else [argument]
        direction = {a: random.normal(size=np.shape(v)) if a in chosen else 0.0 * v for a, v in arrays.items()}
        exact, difference = derivatives(function, arrays, direction)
        assert np.any(exact != 0), argument
        np.testing.assert_allclose(exact, difference, rtol=1e-6, atol=1e-7 * max(1.0, np.max(np.abs(exact))))


def test_the_plan_that_selects_carries_no_gradient():
    """Combine weights of the Sinkhorn router have the derivative of the softmax, masked by the dispatch."""
    kernel, tokens = draw(4, 3), TOKENS + 0j
    tokens.imag = STEP * draw(6, 4)
    config = ROUTERS["sinkhorn_token_choice"].options(width=4, experts=3, tokens=6)
    routing = ROUTERS["sinkhorn_token_choice"].route({"kernel": kernel}, tokens, config).routing
    softmax = spec.softmax_affinity(tokens @ kernel)
    np.testing.assert_allclose(
        routing.combine.imag, (routing.dispatch * softmax[:, :, None]).imag, rtol=1e-12, atol=1e-45
    )
    assert not np.iscomplexobj(routing.dispatch)


def test_full_gradient_of_a_small_layer():
    """Every coordinate of every parameter, against the difference quotient of the loss."""
    config = ROUTERS["softmax_token_choice"].options(width=4, experts=3, tokens=6, choices=2)
    params = {"kernel": draw(4, 3), **MLP}

    def loss(**params):
        router = {"kernel": params.pop("kernel")}
        output = ROUTERS["softmax_token_choice"].route(router, TOKENS, config, noise=NOISE)
        result = spec.moe_layer(TOKENS, output.routing, lambda inputs: mlp(inputs, **params))
        return np.sum(result * result) + sum(output.losses.values())

    for name, value in params.items():
        for index in np.ndindex(value.shape):
            unit = np.zeros_like(value)
            unit[index] = 1.0
            exact = loss(**{**params, name: value + STEP * 1j * unit}).imag / STEP
            above, below = (loss(**{**params, name: value + h * unit}) for h in (1e-6, -1e-6))
            assert exact == pytest.approx((above - below) / 2e-6, rel=1e-5, abs=1e-6)


def test_stop_gradient():
    x = LOGITS + STEP * 1j
    assert not np.iscomplexobj(stop_gradient(x))
    np.testing.assert_array_equal(stop_gradient(x), LOGITS)
    np.testing.assert_array_equal(stop_gradient(LOGITS), LOGITS)


@pytest.mark.parametrize("x", [-600.0, -40.0, -36.0, -20.0, -1.0, 0.0, 1.0, 40.0, 700.0])
def test_softplus_is_as_exact_under_the_complex_step_as_without(x):
    """A logarithm of `1 + exp(x)` loses all digits of a small exponential."""
    stepped = softplus(np.array([x + STEP * 1j]))
    np.testing.assert_allclose(stepped.real, np.logaddexp(x, 0), rtol=1e-15)
    np.testing.assert_allclose(stepped.imag / STEP, 1 / (1 + np.exp(-x)), rtol=1e-14)


def test_a_dropped_imaginary_part_is_noticed():
    exact, difference = derivatives(lambda x: np.real(x) * x, {"x": LOGITS}, {"x": WEIGHTS})
    assert not np.allclose(exact, difference)
