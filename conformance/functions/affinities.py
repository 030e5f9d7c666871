"""Affinities, gates and logits: values per token and expert before any choice."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from moespec import spec
from moespec.backends.blocks import Array
from moespec.conformance.functions.describe import DENSE, SLOTS, Choice, Function, Output
from moespec.conformance.functions.margins import best_experts, token_choice_margin
from moespec.spec.algorithms.cosine_logits import LARGEST_LOG_SCALE
from moespec.spec.algorithms.dselect_k_losses import EPSILON
from moespec.spec.algorithms.group_limited import group_scores
from moespec.spec.numerics import logsumexp, normalize_l2, softmax

__all__ = ["FUNCTIONS", "UPDATE", "chosen_by_level", "levels"]

SCORES = "groups tokens experts"
TANH = 5.0
"""Error of a tanh in roundoffs u. CUDA's `tanhf` is off by 2 ulp plus its rounding (CUDA C++ Programming Guide, Mathematical Functions), up
to 5 u of the result. XLA's approximation is off by 4.63 u (4 million arguments in float32, on a CPU)."""


def _cosine_scale(
    tokens: Array, projection: Array, embeddings: Array, temperature: Array, projection_bias: Array = 0.0, **how: str
) -> Any:
    """Return the scale of cosine logits. The errors of a projection and its norm grow with the sum of absolute terms."""
    terms = np.abs(tokens) @ np.abs(projection) + np.abs(projection_bias)
    norm = np.linalg.norm(tokens @ projection + projection_bias, axis=-1)
    of_rows = 2 * np.linalg.norm(terms, axis=-1) / np.where(norm > 0, norm, 1.0)
    factor = 1 / temperature if how.get("form") == "divide" else np.exp(min(temperature, LARGEST_LOG_SCALE))
    return np.repeat((factor * (of_rows + np.abs(temperature)))[:, None], embeddings.shape[1], axis=1)


def _cap_scale(logits: Array, *, cap: float) -> Array:
    """Return the scale A of a capped logit: `4 u A` is the sum of the rounding errors of the quotient, the tanh and the product.

    The condition scale contains only the quotient's term, `|L| (1 - tanh^2)`, which vanishes for a large logit |L|.
    """
    t = np.tanh(logits / cap)
    return (np.abs(logits) * (1 - t**2) + (TANH + 1) * cap * np.abs(t)) / 4


def _softmax_scale(logits: Array, chosen: Any = True) -> Array:
    """Return the scale A of a softmax over the chosen entries: `4 u A` is the rounding error of `exp(L - (max + log sum))`.

    The errors arise in the logits, the logarithm, the sum with the maximum, the difference and the exponential. The
    condition scale covers only the errors of the logits, and a logit near 0 has a small error.
    """
    p = softmax(np.where(chosen, logits, -np.inf))
    size, from_total = np.abs(logits), -np.log(np.where(p > 0, p, 1.0))
    log_sum, total = -np.log(p.max(axis=-1)), logsumexp(np.where(chosen, logits, -np.inf))
    of_rows = np.sum(p * size, axis=-1) + log_sum + np.abs(total)
    return p * (2 + size + from_total + of_rows[..., None]) / 4


def _gates_scale(noisy_logits: Array, *, choices: int) -> Array:
    return _softmax_scale(noisy_logits, spec.noisy_top_k_affinity(noisy_logits, choices=choices) > 0)


def _hierarchical_scale(noisy_logits: Array, *, branches: int, choices: int) -> Any:
    """Return the scale of a product of two gates, from the errors of both gates."""
    by_level = [*zip(levels(noisy_logits, branches), chosen_by_level(noisy_logits, branches, choices), strict=True)]
    upper, lower = (spec.noisy_top_k_affinity(logits, choices=count) for logits, count in by_level)
    errors = [_gates_scale(logits, choices=count) for logits, count in by_level]
    product = errors[0].reshape(-1, 1) * lower + upper.reshape(-1, 1) * errors[1]
    return product.reshape(len(noisy_logits), -1)


def _capped_scale(scores: Array, *, regularization: float = 1e-3, iterations: int = 100, **options: Any) -> Array:
    """Return `A (1 + max S / lambda + sqrt(3 sum a^2))`, where `a` is `log A` after each round.

    Rounding affects the initial logarithms and, in each round, the logarithms of all three steps. The errors persist
    and accumulate like a random walk.
    """
    rounds = [
        spec.capped_affinity(scores, regularization=regularization, iterations=n + 1, **options)
        for n in range(iterations)
    ]
    squares = sum(np.log(np.where(A > 0, A, 1.0)) ** 2 for A in rounds)
    return rounds[-1] * (1 + np.abs(scores).max() / regularization + np.sqrt(3 * squares))


def _bins_scale(bias: Array, **of_counts: Any) -> Array:
    """Return the total width of all bins, which bounds every position. Subtracting the mean does not reduce the error."""
    return np.full(len(bias), np.ptp(bias) + 2)


def _update_scale(state: Any, statistics: Any, options: Any) -> Any:
    """Return the scale of a quantile bias. For all other states, return 0, because the condition scale is sufficient."""
    return _bins_scale(state["bias"]) if getattr(options, "bias_update", "") == "quantile" else 0.0


def _plan_scale(logits: Array, *, iterations: int = 20, tolerance: float | None = None) -> Array:
    """Return `P (1 + |L| + |f| + |g|)`, since the plan P is the exponential of a sum whose terms nearly cancel."""
    f, column_mass = np.zeros(len(logits)), len(logits) / logits.shape[1]
    for _ in range(iterations):
        g = np.log(column_mass) - logsumexp(logits + f[:, None], axis=0)
        f = -logsumexp(logits + g, axis=1)
    return np.exp(logits + f[:, None] + g) * (1 + np.abs(logits) + np.abs(f)[:, None] + np.abs(g))


ROWS = {"projection": Output("rows n")}


def _support(utility: Array, **options: Any) -> Any:
    """Return the mask of a plan's positive entries, which are the entries that the solver's sparse projections keep."""
    return spec.sparse_transport_affinity(utility, **options) > 0


def _subtracted(dual: Callable[..., Any], axis: int, *, utility: Array, **given: Any) -> Any:
    """Return the dual gradient computed on absolute values: the actual plus the target sums of a plan's rows or columns."""
    plan = dual(utility=utility, **given).plan
    return (plan.shape[0] / plan.shape[1] if axis == 0 else 1.0) + np.abs(plan).sum(axis=axis)


def levels(columns: Array, branches: int) -> tuple[Any, Any]:
    """Split logits into columns of branches (T, a) and columns of experts (T a, b)."""
    return columns[:, :branches], columns[:, branches:].reshape(len(columns) * branches, -1)


def chosen_by_level(columns: Array, branches: int, choices: int) -> tuple[int, int]:
    """Return the number of choices at each level."""
    return min(choices, branches), min(choices, (columns.shape[-1] - branches) // branches)


def _hierarchical_margin(scores: Array, scale: Array, options: Any) -> float:
    branches = options["branches"]
    each = zip(levels(scores, branches), levels(scale, branches), chosen_by_level(scores, **options), strict=True)
    return min(token_choice_margin(*level) for level in each)


def _outside(codes: Array, scale: Array, options: Mapping[str, Any]) -> float:
    """Return the smallest distance between a code and an end of the smooth step, relative to the sum of their scales."""
    half = options.get("gamma", 1.0) / 2
    distance = np.abs(np.abs(codes) - half) / (scale + half)
    return float(distance.min(initial=1.0))


def _positive(gate: Array, scale: Array, options: Mapping[str, Any]) -> float:
    """Return 1 if no gate is small enough to underflow, else 0. Gates above 1e-30 stay nonzero in every dtype."""
    return float(((gate == 0) | (gate > 1e-30)).all())


def _selector_entropy_scale(selectors: Array) -> Array:
    """Return `sum r (2 + |log(r + epsilon)|)`. The added 2 covers values near 1, whose logarithms are near 0."""
    return np.sum(selectors * (2 + np.abs(np.log(selectors + EPSILON))))


def _soft_scale(name: str) -> Array:
    """Return the scale of a softmax in Soft MoE, computed on absolute values.

    Let `a = |x| |phi|` be the absolute logits of the normalised x and phi. To first order, rounding moves `p = softmax(L)`
    by at most `u p (1 + a + sum p a)`, with the sum over the axis of the softmax. Rounding moves the logarithm of a sum
    of n terms by up to `u log n`.
    """

    def scale(tokens: Array, slots: Array, *, scale: Array = 1.0, **options: Any) -> Any:
        p = getattr(spec.soft_routing(tokens, slots, scale=scale, **options), name)
        if options.get("normalize", True):
            form = options.get("norm_form", "paper")
            tokens, slots = normalize_l2(tokens, 1, form=form), scale * normalize_l2(slots, 0, form=form)
        size = np.einsum("td,dec->tec", np.abs(tokens), np.abs(slots))
        axis = (0,) if name == "dispatch" else (1, 2)
        terms = np.prod(np.take(p.shape, axis))
        return p * (1 + np.log(terms) + size + (p * size).sum(axis=axis, keepdims=True))

    return scale


def _of_groups(scores: Array, group_by: Array | None = None, *, groups: int, best: int = 2, **options: Any) -> Any:
    return group_scores(scores if group_by is None else group_by, groups, best)


def _positions(scores: Array, bias: Array, *, choices: int, bins: int) -> Any:
    """Return the positions of the required biases, in units of bins."""
    selection, low = scores + bias, np.min(bias.real) - 1
    order = np.argsort(-selection.real, axis=-1, kind="stable")[..., choices : choices + 1]
    return (np.take_along_axis(selection, order, -1) - scores - low) * (bins / (np.max(bias.real) - 1 - low + 2))


def _edge_margin(positions: Array, scale: Array, options: Any) -> float:
    """Return the smallest distance of a position from a bin edge, relative to the scale."""
    edge = np.clip(np.round(positions), 1, options["bins"] - 1)
    return float(np.min(np.abs(positions - edge) / scale)) if options["bins"] > 1 else np.inf


FUNCTIONS = (
    Function("router_logits", {"logits": Output(SCORES)}),
    Function("softmax_affinity", {"scores": Output(SCORES, written=_softmax_scale)}),
    Function("add_gating_noise", {"noisy": Output(SCORES)}),
    Function("sigmoid_affinity", {"scores": Output(SCORES)}),
    Function("sqrt_softplus_affinity", {"scores": Output(SCORES)}),
    Function("scaled_gates", {"gates": Output(SCORES)}),
    Function("cosine_logits", {"logits": Output(SCORES, written=_cosine_scale)}),
    Function("cap_logits", {"capped": Output(SCORES, written=_cap_scale)}),
    Function("router_jitter", {"jittered": Output("groups tokens width")}),
    Function(
        "relu_affinity",
        {"gates": Output(SCORES)},
        Choice(lambda logits: np.stack([logits, np.zeros_like(logits)], axis=-1), best_experts(1)),
    ),
    Function("relu_loss", {"loss": Output()}),
    Function("excess_gates", {"excess": Output(scale="unit", summed=True)}),
    Function("renewed_penalty", {"penalty": Output()}),
    Function(
        "capped_affinity", {"affinity": Output(SCORES, scale="written", written=_capped_scale, constant="sinkhorn")}
    ),
    Function("sinkhorn_affinity", {"plan": Output(SCORES, written=_plan_scale, constant="sinkhorn")}),
    Function("project_simplex", ROWS),
    Function("project_sparse_simplex", ROWS),
    Function(
        "transport_semi_dual",
        {
            "value": Output("groups"),
            "gradient": Output("groups tokens", written=partial(_subtracted, spec.transport_semi_dual, 1)),
            "plan": Output(SCORES),
        },
    ),
    Function(
        "transport_dual",
        {
            "value": Output("groups"),
            "token_gradient": Output("groups tokens", written=partial(_subtracted, spec.transport_dual, 1)),
            "expert_gradient": Output("groups experts", written=partial(_subtracted, spec.transport_dual, 0)),
            "plan": Output(SCORES),
        },
    ),
    Function(
        "sparse_transport_affinity",
        {"plan": Output(SCORES, scale="spread", constant="transport")},
        Choice(_support, scale="stability", constant="transport"),
    ),
    Function("noisy_top_k_logits", {"noisy_logits": Output(SCORES)}),
    Function(
        "noisy_top_k_affinity",
        {"gates": Output(SCORES, written=_gates_scale)},
        Choice("noisy_logits", best_experts("choices")),
    ),
    Function(
        "hierarchical_affinity",
        {"gates": Output(SCORES, written=_hierarchical_scale)},
        Choice("noisy_logits", _hierarchical_margin),
    ),
    Function("smooth_step", {"step": Output("rows n")}),
    Function(
        "dselect_k_codes", {"codes": Output("groups tokens choices bits"), "logits": Output("groups tokens choices")}
    ),
    Function("dselect_k_selectors", {"selectors": Output("groups tokens choices experts")}, Choice("codes", _outside)),
    Function("dselect_k_gate", {"gate": Output(SCORES)}),
    Function("dselect_k_routing", SLOTS, Choice("gate", _positive)),
    Function("dselect_k_entropy", {"loss": Output(written=_selector_entropy_scale)}),
    Function("dselect_k_reachability", {"loss": Output()}),
    Function(
        "soft_routing",
        {name: Output(DENSE, scale="written", written=_soft_scale(name)) for name in ("dispatch", "combine")},
    ),
    # The biased scores have no gradient, so the condition scale cannot be computed.
    Function("biased_scores", {"biased": Output(SCORES, written=lambda scores, bias: np.abs(scores) + np.abs(bias))}),
    Function(
        "expert_load", {"load": Output("experts", scale="unit", summed=True)}, Choice("scores", best_experts("choices"))
    ),
    Function("balance_bias", {"bias": Output("experts")}),
    Function(
        "group_limited_scores",
        {"limited": Output(SCORES, follows=("scores",))},
        Choice(_of_groups, best_experts("limit")),
    ),
    Function(
        "required_biases",
        {"counts": Output("experts bins", scale="unit", summed=True)},
        Choice(_positions, _edge_margin),
    ),
    Function("quantile_bias", {"bias": Output("experts", written=_bins_scale)}),
    Function("pool_images", {"pooled": Output("groups images width")}),
    Function("spread_images", {"scores": Output(SCORES)}),
)

PAIRS = {"cutoffs": Output("pair experts"), "controller": Output("pair")}
UPDATE = Function("ROUTERS.update", {**PAIRS, "*": Output("experts", written=_update_scale)})
"""Describes a router's `update`, which returns a dict with the router's state after a step."""
