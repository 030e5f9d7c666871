"""The mixture-of-experts layer that all routers share: dispatch, experts, combine.

| here | Routers (arXiv 2401.15969), section 1.2 |
|---|---|
| `tokens` (T, D) | X |
| `routing.dispatch`, `routing.combine` (T, E, C) | D, C |
| inputs and outputs of the slots (E, C, D) | X tilde, Y tilde |
| result (T, D) | Y |

Ambiguity ledger

LA-1: Which form of GELU do the experts use?
    Reading: the experts use the tanh approximation, which is the default of flax.
        By: google-research/vision_transformer, vit_jax/models_vit.py, MlpBlock (flax.linen.gelu);
        google-research/vmoe, vmoe/nn/vit_moe.py, MlpBlock (the same class).
    Alternative b: the experts use the exact form with erf, which is the default of torch.
        By: lucidrains/soft-moe-pytorch, soft_moe_pytorch/soft_moe.py, FeedForward; bwconrad/soft-moe,
        soft_moe/vision_transformer.py, SoftMoEVisionTransformer (torch.nn.GELU); lucidrains/vit-pytorch,
        vit_pytorch/vit.py, FeedForward.
LA-2: What does the layer return for a token without a slot?
    Reading: the layer returns 0, so only the residual connection carries the token.
        By: google-research/vmoe, vmoe/moe.py, EinsumDispatcher.combine; tensorflow/mesh,
        mesh_tensorflow/transformer/moe.py, transformer_moe_layer_v1.
    Alternative b: the layer returns the token itself, unchanged.
"""

from collections.abc import Callable, Mapping

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.algorithms.gated_experts import ACTIVATIONS, activated, expert_parameters, second_factor
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_option, check_rank, check_same_shape, check_size
from moespec.spec.numerics import Array
from moespec.spec.routing import Routing
from moespec.spec.values import as_array

__all__ = ["expert_mlp", "moe_layer"]

ALGORITHMS = (
    Algorithm(
        "moe_layer",
        "Liu et al. 2024 (arXiv 2401.15969), section 1.2",
        5,
        ("moe_layer", "expert_mlp", "moe_mlp", "routing_metrics"),
    ),
)


def moe_layer(tokens: ArrayLike, routing: Routing, experts: Callable[[Array], Array]) -> Array:
    """Computes the mixture-of-experts layer:

        inputs[e, c]  = sum_t dispatch[t, e, c] tokens[t]
        outputs       = experts(inputs)
        result[t]     = sum_e,c combine[t, e, c] outputs[e, c]

    An empty slot has input 0 and usually a nonzero output, but its combine weights are 0.

    Args:
        tokens: (tokens, width).
        routing: `dispatch` and `combine`, each (tokens, experts, capacity).
        experts: a function that maps (experts, capacity, width) to (experts, capacity, output).

    Returns:
        (tokens, output).

    Raises:
        ShapeError: the input and the output of `experts` differ in the number of experts or slots.

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


def expert_mlp(
    inputs: ArrayLike, params: Mapping[str, ArrayLike], *, gelu: str = "tanh", activation: str = "gelu"
) -> Array:
    """Applies the MLP of each expert to the slots of the expert. With `w3`, the MLP is gated:

        result = w2[e] f(w1[e] x + b1[e]) + b2[e]
        result = w2[e] (f(w1[e] x + b1[e]) * g(w3[e] x + b3[e])) + b2[e]     with `w3`

    A bias that is not passed is 0. With `activation`, f(z) and g(z) are

        gelu                gelu(z) and z
        silu                z sigmoid(z) and z
        quick_gelu          z sigmoid(1.702 z) and z, as in CLIP
        relu2               max(z, 0)^2 and z, as in Nemotron 3 (without `w3`)
        clamped_silu        silu(min(z, 10)) and clamp(z, -10, 10), as in DeepSeek-V4
        clamped_quick_gelu  quick_gelu(min(z, 7)) and clamp(z, -7, 7) + 1, as in gpt-oss
        situ                4 tanh(z / 4) sigmoid(z) and 25 tanh(z / 25), as in Kimi K3

    The derivative of a clamp is 1 at its bounds.

    Args:
        inputs: (experts, capacity, width).
        params: `w1` (experts, width, hidden) and `w2` (experts, hidden, output), where output equals width in the models;
            for gated experts `w3`, shaped like `w1`; optional biases `b1` (experts, hidden), `b3` (experts, hidden) and
            `b2` (experts, output).
        gelu: the form of GELU, "tanh" or "erf".
        activation: the name of f and g.

    Returns:
        (experts, capacity, output).

    Raises:
        ConfigError: a parameter is missing or unknown.

    Source: Routers, section 1.2; gated: Shazeer 2020 (arXiv 2002.05202), FFN_GEGLU and FFN_SwiGLU, whose V is `w3`; relu2: So et al. 2021
    (arXiv 2109.08668); clamped_quick_gelu: openai/gpt-oss, gpt_oss/torch/model.py, swiglu.

    >>> params = {"w1": [[[1.0]]], "b1": [[0.0]], "w2": [[[2.0]]], "b2": [[1.0]]}  # one expert of width 1
    >>> expert_mlp([[[0.0], [10.0]]], params).tolist()  # an empty slot returns the bias
    [[[1.0], [21.0]]]
    >>> gated = {"w1": [[[4.0]]], "w3": [[[0.5]]], "w2": [[[2.0]]]}
    >>> expert_mlp([[[0.0], [10.0]]], gated, activation="silu").round(9).tolist()
    [[[0.0], [400.0]]]
    """
    check_option("gelu", gelu, ("tanh", "erf"))
    check_option("activation", activation, ACTIVATIONS)
    inputs = as_array("inputs", inputs, "experts capacity width")
    weights = expert_parameters(params, width=inputs.shape[2], experts=len(inputs))

    def linear(x: Array, number: int) -> Array:
        y = np.einsum("ecd,edh->ech", x, weights[f"w{number}"])
        return y + weights[f"b{number}"][:, None, :] if f"b{number}" in weights else y

    hidden = linear(inputs, 1)
    active = activated(hidden, activation, gelu)
    return linear(active * second_factor(linear(inputs, 3), activation) if "w3" in weights else active, 2)
