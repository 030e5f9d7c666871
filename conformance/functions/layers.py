"""Layers around a router, layers of networks, and array operations."""

from functools import partial
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.backends.contract import Backend
from moespec.conformance.functions.describe import METRICS, Function, Output
from moespec.spec import moe_mlp
from moespec.spec.numerics import softmax
from moespec.spec.routing import Routing

__all__ = ["FUNCTIONS"]


def _absolute_experts(inputs: Array, params: Any) -> Any:
    """Compute experts on absolute values, `(|x| |w1| + |b1|) |w2| + |b2|`. The result is a bound because `|gelu(z)| <= |z|`."""
    w = {name: np.abs(array) for name, array in params.items()}

    def linear(x: Array, number: int) -> Any:
        y = np.einsum("ecd,edh->ech", x, w[f"w{number}"])
        return y + w[f"b{number}"][:, None] if f"b{number}" in w else y

    hidden = linear(inputs, 1)
    return linear(hidden * linear(inputs, 3) if "w3" in w else hidden, 2)


def _experts_scale(inputs: Array, params: Any, *, gelu: str = "tanh", activation: str = "gelu") -> Array:
    return _absolute_experts(np.abs(inputs), params)


def _layer_scale(tokens: Array, routing: Any, experts: Any) -> Array:
    """Compute the layer on absolute values."""
    inputs = np.einsum("tec,td->ecd", routing.dispatch, np.abs(tokens))
    outputs = _absolute_experts(inputs, experts.keywords["params"]) if isinstance(experts, partial) else inputs
    return np.einsum("tec,ecd->td", np.abs(routing.combine), outputs)


def _mlp_layer_scale(
    tokens: Array,
    routing: Any,
    params: Any,
    *,
    shared: Any = None,
    latent: Any = None,
    constants: Any = None,
    copies: int = 0,
    zeros: int = 0,
    norm_epsilon: float = 1e-6,
    **options: Any,
) -> Array:
    """Compute the layer on absolute values. The RMSNorm divides these values by the root mean square of the MLPs' output."""
    count = len(params["w1"])
    first, others = (Routing(*(each[:, part] for each in routing)) for part in (slice(count), slice(count, None)))
    experts = partial(_experts_scale, params=params)
    x = np.abs(tokens) if latent is None else np.abs(tokens) @ np.abs(latent["down"])
    scale = _layer_scale(x, first, experts)
    if latent is not None and "norm" in latent:
        y = moe_mlp(tokens @ latent["down"], first, params, **options)
        root = np.sqrt(np.mean(y**2, axis=-1, keepdims=True) + norm_epsilon)
        moved = np.mean(np.abs(y) * scale, axis=-1, keepdims=True) / root**2
        scale = np.abs(latent["norm"]) * (scale + np.abs(y) * (1 + moved)) / root
    scale = scale if latent is None else scale @ np.abs(latent["up"])
    number = 0 if constants is None else len(constants["value"])
    if number:
        size = 1 + np.einsum("td,edp->tep", np.abs(tokens), np.abs(constants["mix"])).max(axis=-1)
        sizes = np.abs(tokens)[:, None] + np.abs(constants["value"])  # (tokens, experts, width)
        scale = scale + np.einsum("te,te,ted->td", np.abs(others.combine[:, :number]).sum(axis=-1), size, sizes)
    weight = np.abs(others.combine[:, number : number + copies]).sum(axis=(1, 2))
    scale = scale + weight[:, None] * np.abs(tokens)
    alone = {name: value[None] for name, value in (shared or {}).items() if name != "gate"}
    if not alone:
        return scale
    size = 1 + np.abs(tokens) @ np.abs(shared["gate"]) if "gate" in shared else np.ones(len(tokens))
    return scale + size[:, None] * _absolute_experts(np.abs(tokens)[None], alone)[0]


def _softmax_scale(logits: Array, targets: Array) -> Array:
    size = np.abs(logits).max(axis=-1, keepdims=True) + np.log(logits.shape[-1])
    return np.sum(targets * (size + np.abs(logits)), axis=-1)


def _sigmoid_scale(logits: Array, targets: Array) -> Array:
    return np.sum(np.abs(logits) * (1 + targets) + np.log(2), axis=-1)


def _layer_norm_scale(x: Array, scale: Array, bias: Array | None = None, *, epsilon: float = 1e-6) -> Array:
    """Return the sum of the rounding errors of `y = c r s + b`, with c = x - mean x and r = 1 / sqrt(mean c^2 + epsilon).

    To first order in u, the mean has an error of up to `u mean|x|`, which moves every c equally. The sum of c is 0, so r does not change,
    and y moves by `|s| r mean|x|`. The rounding errors of c, r and their products with s are proportional to `|s| r |c|`. The rounding
    error of the sum is proportional to |y|. The condition scale omits the mean's error: at the outlier of a row, dy/dx is near 0.
    """
    centred = x - x.mean(axis=-1, keepdims=True)
    r = 1 / np.sqrt(np.mean(centred**2, axis=-1, keepdims=True) + epsilon)
    size = np.abs(scale) * r * (np.abs(centred) + np.abs(x).mean(axis=-1, keepdims=True))
    return size if bias is None else size + np.abs(bias)


def _attention_scale(query: Array, key: Array, value: Array, *, causal: bool = False) -> Array:
    root = np.sqrt(query.shape[-1])
    scores = np.einsum("qhd,khd->hqk", query, key) / root
    p = softmax(np.where(np.tri(len(query), len(key), dtype=bool), scores, -np.inf) if causal else scores)
    size = np.einsum("qhd,khd->hqk", np.abs(query), np.abs(key)) / root
    moved = p * (1 + np.log(len(key)) + size + (p * size).sum(axis=-1, keepdims=True))
    return np.einsum("hqk,khd->qhd", moved, np.abs(value))


def _array_operations(B: Backend, x: Array, y: Array) -> dict[str, Any]:
    """Run the array operations on two arrays, (batch, sequence, width) and (width, heads, dim)."""
    return {
        "einsum": B.einsum("nsd,dhk->nshk", x, y),
        "concatenate": B.concatenate([x, x + x], 1),
        "broadcast_to": B.broadcast_to(x[:1], tuple(x.shape)),
        "transpose": B.transpose(x, (2, 0, 1)),
        "mean": B.mean(x, 1),
        "sum": B.sum(x, 1),
        "tanh": B.tanh(x),
        "softmax": B.softmax(x, 2),
    }


_rounded = partial(Output, rounded=True)

OPERATIONS = {
    "einsum": _rounded("batch sequence heads dim"),
    "concatenate": _rounded("batch sequence width"),
    "broadcast_to": _rounded("batch sequence width"),
    "transpose": _rounded("width batch sequence"),
    "mean": _rounded("batch width"),
    "sum": _rounded("batch width"),
    "tanh": _rounded("batch sequence width"),
    "softmax": _rounded("batch sequence width"),
}

COUNTS = ("experts_min", "experts_max", "at_least_1", "at_least_2", "at_least_4")

FUNCTIONS = (
    Function(
        "expert_mlp",
        {"outputs": Output("groups experts capacity width", scale="written", written=_experts_scale, rounded=True)},
    ),
    Function("moe_layer", {"output": Output("groups tokens width", written=_layer_scale, rounded=True)}),
    Function("moe_mlp", {"output": Output("groups tokens width", written=_mlp_layer_scale, rounded=True)}),
    Function("routing_metrics", METRICS),
    Function("gelu", {"y": _rounded("rows width", scale="written", written=lambda x, **options: np.abs(x))}),
    Function("layer_norm", {"normalised": _rounded("images tokens width", scale="written", written=_layer_norm_scale)}),
    Function("attention", {"attended": _rounded("images tokens heads dim", written=_attention_scale)}),
    Function("patch_embed", {"patches": _rounded("images tokens width")}),
    Function("softmax_cross_entropy", {"loss": Output("rows", scale="written", written=_softmax_scale)}),
    Function("sigmoid_cross_entropy", {"loss": Output("rows", scale="written", written=_sigmoid_scale)}),
    Function("rescale", {"rescaled": Output("images tokens width", rounded=True)}),
    Function("array_operations", OPERATIONS, run=_array_operations, needs=tuple(OPERATIONS)),
    Function("convolution", {"features": Output("images height width features", rounded=True)}),
    Function("embedding", {"rows": Output("groups tokens width")}),
    Function("dropout", {"kept": Output("examples tokens width", rounded=True, follows=("x",))}),
    Function("branch_rate", {"rate": Output("", scale="unit")}, traced=False),
    Function("collapse_metrics", {name: Output(scale="unit") for name in ("dispatch_max", "combine_max")}),
    Function("summed_dispatch", {"sums": Output("groups tokens", scale="unit")}),
    Function("cumulative_dispatch", {"sums": Output("groups tokens", scale="unit")}),
    Function("experts_per_token", {name: Output(scale="unit") for name in COUNTS}),
    Function("slot_similarity", {"products": Output("slots slots", scale="unit")}),
)
