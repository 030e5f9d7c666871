"""The layer that all routers share: dispatch, experts, combine.

| here | Routers (arXiv 2401.15969), section 1.2 |
|---|---|
| `tokens` (T, D) | X |
| `routing.dispatch`, `routing.combine` (T, E, C) | D, C |
| inputs and outputs of the slots (E, C, D) | X tilde, Y tilde |
| result (T, D) | Y |

Ambiguity ledger

LA-1: Which form of GELU do the experts use?
    Reading: the tanh approximation, flax's default.
        By: google-research/vision_transformer, vit_jax/models_vit.py, MlpBlock (flax.linen.gelu);
        google-research/vmoe, vmoe/nn/vit_moe.py, MlpBlock, which is that one.
    Alternative b: the exact one with erf, torch's default.
        By: lucidrains/soft-moe-pytorch, soft_moe_pytorch/soft_moe.py, FeedForward; bwconrad/soft-moe,
        soft_moe/vision_transformer.py, SoftMoEVisionTransformer (torch.nn.GELU); lucidrains/vit-pytorch,
        vit_pytorch/vit.py, FeedForward.
LA-2: What does a token without a slot get?
    Reading: 0, so that only the residual connection carries it.
        By: google-research/vmoe, vmoe/moe.py, EinsumDispatcher.combine; tensorflow/mesh,
        mesh_tensorflow/transformer/moe.py, transformer_moe_layer_v1.
    Alternative b: the token itself.
"""

from collections.abc import Callable, Mapping

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_option, check_rank, check_same_shape, check_size
from moespec.spec.errors import ConfigError
from moespec.spec.gelu import activation
from moespec.spec.numerics import Array
from moespec.spec.routing import Routing
from moespec.spec.values import as_array

__all__ = ["expert_mlp", "moe_layer", "moe_mlp"]

ALGORITHMS = (
    Algorithm(
        "moe_layer",
        "Liu et al. 2024 (arXiv 2401.15969), section 1.2",
        3,
        ("moe_layer", "expert_mlp", "moe_mlp", "routing_metrics"),
    ),
)

AXES = {"w1": "experts width hidden", "b1": "experts hidden", "w2": "experts hidden output", "b2": "experts output"}
"""Axes of the parameters of `expert_mlp`."""


def moe_layer(tokens: ArrayLike, routing: Routing, experts: Callable[[Array], Array]) -> Array:
    """The mixture-of-experts layer:

        inputs[e, c]  = sum_t dispatch[t, e, c] tokens[t]
        outputs       = experts(inputs)
        result[t]     = sum_e,c combine[t, e, c] outputs[e, c]

    An empty slot has inputs 0 and in general an output that is not 0, but its combine weights are 0.

    Args:
        tokens: (tokens, width).
        routing: `dispatch` and `combine`, each (tokens, experts, capacity).
        experts: maps (experts, capacity, width) to (experts, capacity, width of the output).

    Returns:
        (tokens, width of the output).

    Raises:
        ShapeError: shapes do not fit, also that of the experts' output.
        DtypeError: `tokens` or `routing` is not floating.
        ContractError: `tokens` or `routing` holds NaN or infinity.

    Source: Routers, section 1.2.

    >>> dispatch = np.array([[[1.0], [0.0]], [[0.0], [1.0]], [[0.0], [0.0]]])  # the third token is dropped
    >>> routing = Routing(dispatch, 0.5 * dispatch)
    >>> moe_layer([[1.0], [2.0], [3.0]], routing, lambda inputs: 10 * inputs + 2).tolist()
    [[6.0], [11.0], [0.0]]
    """
    tokens = as_array("tokens", tokens, "tokens width")
    dispatch = as_array("routing.dispatch", routing.dispatch, "tokens experts capacity")
    combine = as_array("routing.combine", routing.combine, "tokens experts capacity")
    check_same_shape("routing.combine", combine, "routing.dispatch", dispatch)
    check_size("routing.dispatch", dispatch, 0, len(tokens), "the number of tokens")

    # Dispatch.
    inputs = np.einsum("tec,td->ecd", dispatch, tokens)
    outputs = experts(inputs)
    check_rank("experts", outputs, "experts capacity width")
    check_size("experts", outputs, 0, inputs.shape[0], "the experts of its input")
    check_size("experts", outputs, 1, inputs.shape[1], "the capacity of its input")

    # Combine.
    return np.einsum("tec,ecd->td", combine, outputs)


def expert_mlp(inputs: ArrayLike, params: Mapping[str, ArrayLike], *, gelu: str = "tanh") -> Array:
    """The multi-layer perceptron of each expert on its own slots: `w2[e] gelu(w1[e] x + b1[e]) + b2[e]`.

    Args:
        inputs: (experts, capacity, width).
        params: `w1` (experts, width, hidden), `b1` (experts, hidden), `w2` (experts, hidden, output), `b2` (experts,
            output), where the output is as wide as the input in the models.
        gelu: "tanh" or "erf".

    Returns:
        (experts, capacity, output).

    Raises:
        ConfigError: a parameter is missing, `gelu` is unknown.
        ShapeError: `inputs` or a parameter does not have the axes above, or their sizes differ.
        DtypeError: `inputs` or a parameter is not floating.
        ContractError: `inputs` or a parameter holds NaN or infinity.

    Source: Routers, section 1.2.

    >>> params = {"w1": [[[1.0]]], "b1": [[0.0]], "w2": [[[2.0]]], "b2": [[1.0]]}  # one expert of width 1
    >>> expert_mlp([[[0.0], [10.0]]], params).tolist()  # the empty slot gives the bias
    [[[1.0], [21.0]]]
    """
    check_option("gelu", gelu, ("tanh", "erf"))
    inputs = as_array("inputs", inputs, "experts capacity width")
    weights = expert_parameters(params, width=inputs.shape[2], experts=len(inputs))
    hidden = np.einsum("ecd,edh->ech", inputs, weights["w1"]) + weights["b1"][:, None, :]
    active = activation(hidden, form=gelu)
    return np.einsum("ech,eho->eco", active, weights["w2"]) + weights["b2"][:, None, :]


def moe_mlp(tokens: ArrayLike, routing: Routing, params: Mapping[str, ArrayLike], *, gelu: str = "tanh") -> Array:
    """The mixture-of-experts layer whose experts are perceptrons, `moe_layer` with `expert_mlp`:

        result[t] = sum_e,c combine[t, e, c] (w2[e] gelu(w1[e] inputs[e, c] + b1[e]) + b2[e])

    An empty slot changes no result, so that a backend need not compute one. Where a routing gives an expert room for every
    token (no capacity, `capacity_factor` infinite), the work is that of the tokens then and not that of the slots.

    Args:
        tokens: (tokens, width).
        routing: `dispatch` and `combine`, each (tokens, experts, capacity).
        params: `w1`, `b1`, `w2` and `b2`, as in `expert_mlp`.
        gelu: "tanh" or "erf".

    Returns:
        (tokens, output).

    Raises:
        ConfigError: a parameter is missing, `gelu` is unknown.
        ShapeError: shapes do not fit.
        DtypeError: `tokens`, `routing` or a parameter is not floating.
        ContractError: `tokens`, `routing` or a parameter holds NaN or infinity.

    Source: Routers, section 1.2.

    >>> dispatch = np.array([[[1.0, 0.0]], [[0.0, 0.0]]])  # one expert, two slots, and a token in the first of them
    >>> params = {"w1": [[[1.0]]], "b1": [[0.0]], "w2": [[[2.0]]], "b2": [[1.0]]}
    >>> moe_mlp([[10.0], [10.0]], Routing(dispatch, 0.5 * dispatch), params).tolist()
    [[10.5], [0.0]]
    """
    return moe_layer(tokens, routing, lambda inputs: expert_mlp(inputs, params, gelu=gelu))


def expert_parameters(params: Mapping[str, ArrayLike], *, width: int, experts: int | None = None) -> dict[str, Array]:
    """The checked parameters of the perceptrons, for inputs of a width and for `experts` experts (any number if None)."""
    if missing := [name for name in AXES if name not in params]:
        raise ConfigError(f"params: {missing[0]} is missing, got {sorted(params)}")
    weights = {name: as_array(name, params[name], axes) for name, axes in AXES.items()}
    for name, array in weights.items():
        reason = "the experts of w1" if experts is None else "the experts of inputs"
        check_size(name, array, 0, experts or len(weights["w1"]), reason)
    check_size("w1", weights["w1"], 1, width, "the width of inputs")
    check_size("b1", weights["b1"], 1, weights["w1"].shape[2], "the hidden width of w1")
    check_size("w2", weights["w2"], 1, weights["w1"].shape[2], "the hidden width of w1")
    check_size("b2", weights["b2"], 1, weights["w2"].shape[2], "the output width of w2")
    return weights
