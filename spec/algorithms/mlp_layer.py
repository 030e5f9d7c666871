"""The mixture-of-experts layer with MLPs as experts, and what surrounds them: other kinds of experts, projections, and a shared expert.

`layer` specifies the layer and the MLPs, `gated_experts` the shared expert, `latent_experts` the projections,
`zero_computation_experts` the experts without an MLP, and `input_gates` the place of the combine weights.
"""

from collections.abc import Mapping

from moespec.spec.algorithms.gated_experts import alone, shared_weight
from moespec.spec.algorithms.input_gates import PLACES
from moespec.spec.algorithms.latent_experts import latent_parameters, raised
from moespec.spec.algorithms.layer import expert_mlp, moe_layer
from moespec.spec.algorithms.zero_computation_experts import constant_outputs, constant_parameters, split_kinds
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_at_least, check_option, check_positive, check_size
from moespec.spec.numerics import Array
from moespec.spec.routing import Routing
from moespec.spec.values import as_array

__all__ = ["moe_mlp"]


def moe_mlp(
    tokens: ArrayLike,
    routing: Routing,
    params: Mapping[str, ArrayLike],
    *,
    shared: Mapping[str, ArrayLike] | None = None,
    latent: Mapping[str, ArrayLike] | None = None,
    constants: Mapping[str, ArrayLike] | None = None,
    copies: int = 0,
    zeros: int = 0,
    weights_on: str = "output",
    gelu: str = "tanh",
    activation: str = "gelu",
    norm_epsilon: float = 1e-6,
) -> Array:
    """Computes the mixture-of-experts layer `moe_layer` with the MLPs of `expert_mlp` as experts:

        result[t] = sum_e,c combine[t, e, c] f_e(inputs[e, c])  (+ f_shared(tokens[t]))

    Empty slots do not affect the result, so a backend can skip them. If every expert has a slot for every token (no capacity,
    or an infinite `capacity_factor`), the cost in such a backend grows with the number of tokens, not with the number of slots.

    A shared expert serves every token with weight 1, regardless of the routing. Several shared experts are merged into one
    expert. The merged expert has the sum of the hidden widths and the sum of the biases `b2`. With a `gate`, its weight is
    sigmoid(tokens[t] gate).

    The MLPs are the first experts of the routing. Then follow constant experts, which return a softmax-weighted sum of the
    token and a vector, `copies` experts, which return the token, and `zeros` experts, which return 0. With `latent`, the MLPs
    compute `norm(sum ... f_e(inputs[e, c] down)) up`; the other experts compute at the full width.

    Args:
        tokens: (tokens, width).
        routing: `dispatch` and `combine`, each (tokens, experts, capacity).
        params: as in `expert_mlp`.
        shared: the parameters of a shared expert, as in `params` but without the experts axis: `w1` (width, hidden), ..., and
            optionally `gate` (width,).
        latent: `down` (width, latent), `up` (latent, output), and optionally `norm` (latent,), the scale of an RMSNorm before `up`.
        constants: `value` (n, width) and `mix` (n, width, 2) of n constant experts.
        copies, zeros: the number of copy experts and of zero experts.
        weights_on: "output", or "input" to multiply the inputs of the MLPs by the combine weights instead of their outputs.
        gelu: "tanh" or "erf".
        activation: as in `expert_mlp`, also for the shared expert.
        norm_epsilon: a constant above 0 that the RMSNorm adds to the mean square.

    Returns:
        (tokens, output).

    Raises:
        ConfigError: a parameter is missing or unknown.
        ShapeError: the experts of all kinds are not as many as the experts of the routing.

    Source: Routers, section 1.2; shared: Dai et al. 2024 (arXiv 2401.06066), shared expert isolation.

    >>> import numpy as np
    >>> dispatch = np.array([[[1.0, 0.0]], [[0.0, 0.0]]])  # one expert, two slots, one token in the first slot
    >>> params = {"w1": [[[1.0]]], "b1": [[0.0]], "w2": [[[2.0]]], "b2": [[1.0]]}
    >>> moe_mlp([[10.0], [10.0]], Routing(dispatch, 0.5 * dispatch), params).tolist()
    [[10.5], [0.0]]
    >>> moe_mlp([[10.0], [10.0]], Routing(dispatch, dispatch), params, shared={"w1": [[1.0]], "w2": [[3.0]]}).tolist()
    [[51.0], [30.0]]
    >>> both = np.array([[[1.0], [1.0]]])  # one token in both experts; the second copies the token
    >>> moe_mlp([[10.0]], Routing(both, 0.5 * both), params, copies=1).tolist()
    [[15.5]]
    """
    options = {"gelu": gelu, "activation": activation}
    check_option("weights_on", weights_on, PLACES)
    norm_epsilon = check_positive("norm_epsilon", norm_epsilon)
    copies, zeros = check_at_least("copies", copies, 0), check_at_least("zeros", zeros, 0)
    tokens = as_array("tokens", tokens, "tokens width")
    constant = None if constants is None else constant_parameters(constants, tokens.shape[1])
    others = (0 if constant is None else len(constant["value"]), copies, zeros)
    to_mlps, to_constants, to_copies = split_kinds(routing, *others)

    # The MLPs.
    projection = None if latent is None else latent_parameters(latent, tokens.shape[1])
    inputs = tokens if projection is None else tokens @ projection["down"]
    weighted = Routing(to_mlps.combine, to_mlps.dispatch) if weights_on == "input" else to_mlps
    result = moe_layer(inputs, weighted, lambda slots: expert_mlp(slots, params, **options))
    if projection is not None:
        result = raised(result, projection, epsilon=norm_epsilon)

    # The experts without an MLP. Zero experts add nothing.
    if constant is not None:
        result = result + moe_layer(tokens, to_constants, lambda slots: constant_outputs(slots, constant))
    if copies:
        result = result + moe_layer(tokens, to_copies, lambda slots: slots)

    # The shared expert.
    if shared is None:
        return result
    served = expert_mlp(tokens[None], alone(shared), **options)[0]
    check_size("w2", result, 1, served.shape[1], "the output width of the shared expert")
    return result + (shared_weight(tokens, shared["gate"]) * served if "gate" in shared else served)
