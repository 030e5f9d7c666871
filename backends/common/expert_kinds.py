"""The parts of an MoE layer around its MLP experts: latent projections, experts without an MLP, and the shared expert."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from moespec.backends.common.namespace import Array, RoutingNamespace
from moespec.spec.algorithms import gated_experts, latent_experts, zero_computation_experts
from moespec.spec.algorithms.gated_experts import check_part_names
from moespec.spec.algorithms.input_gates import PLACES
from moespec.spec.algorithms.zero_computation_experts import check_constant_sizes, experts_before
from moespec.spec.checks import check_at_least, check_option, check_positive, check_scores, check_size

__all__: list[str] = []


class Kinds(NamedTuple):
    """The arguments of `moe_mlp` that describe what surrounds the MLP experts."""

    shared: Mapping[str, Any] | None = None
    latent: Mapping[str, Any] | None = None
    constants: Mapping[str, Any] | None = None
    copies: int = 0
    zeros: int = 0
    weights_on: str = "output"
    norm_epsilon: float = 1e-6


def with_kinds(
    xp: RoutingNamespace[Array, Any, Any],
    layer: Callable[[Array, Any, Callable[[Array], Array]], Array],
    mlp: Callable[..., Array],
    mlps: Callable[[Array, Any], Array],
    tokens: Array,
    routing: Any,
    kinds: Kinds,
    **options: Any,
) -> Array:
    """Computes `moe_mlp`: tokens (G, T, D) -> (G, T, D').

    layer: the backend's `moe_layer`. mlp: the backend's `expert_mlp`, called with `options`. mlps: computes the layer of the MLP experts
    from the tokens and the routing to these experts.
    """
    check_option("weights_on", kinds.weights_on, PLACES)
    check_positive("norm_epsilon", kinds.norm_epsilon)
    constants = None if kinds.constants is None else _constants(xp, kinds.constants, tokens.shape[2])
    copies, zeros = check_at_least("copies", kinds.copies, 0), check_at_least("zeros", kinds.zeros, 0)
    others = (0 if constants is None else int(constants["value"].shape[0]), copies, zeros)
    to_mlps, to_constants, to_copies = _split(xp, routing, *others)
    if kinds.latent is None:
        y = mlps(tokens, to_mlps)
    else:
        latent = _latent(xp, kinds.latent, tokens.shape[2])
        y = _raised(xp, mlps(tokens @ xp.cast(latent["down"], tokens.dtype), to_mlps), latent, kinds.norm_epsilon)
    if constants is not None:
        y = y + layer(tokens, to_constants, lambda slots: _constant_outputs(xp, slots, constants))
    if copies:
        y = y + _copied(xp, layer, tokens, to_copies)
    return y if kinds.shared is None else y + _served(xp, mlp, tokens, y, kinds.shared, **options)


def _split(xp: RoutingNamespace[Array, Any, Any], routing: Any, *others: int) -> tuple[Any, Any, Any]:
    """The routings to the MLP experts, to the constant experts and to the copy experts."""
    if not any(others):
        return routing, None, None
    is_sparse = isinstance(routing, xp.SlotRouting)
    mlps = experts_before(routing.token.shape[1] if is_sparse else routing.dispatch.shape[2], *others)
    bounds = pairwise((0, mlps, mlps + others[0], mlps + others[0] + others[1]))
    if not is_sparse:
        first, second, third = (xp.SoftRouting(*(array[:, :, a:b] for array in routing)) for a, b in bounds)
        return first, second, third
    first, second, third = (_slots(xp, routing, a, b) for a, b in bounds)
    return first, second, third


def _slots(xp: RoutingNamespace[Array, Any, Any], routing: Any, start: int, end: int) -> Any:
    """The routing to the experts from `start` to `end`."""
    capacity, slot = routing.token.shape[2], routing.slot
    if slot is not None:
        first, count = start * capacity, (end - start) * capacity
        slot = xp.where((slot >= first) & (slot < first + count), slot - first, count)
    return xp.SlotRouting(routing.token[:, start:end], routing.weight[:, start:end], slot, routing.tokens)


def weighted_inputs(
    xp: RoutingNamespace[Array, Any, Any], routing: Any, experts: Callable[[Array], Array]
) -> tuple[Any, Callable[[Array], Array]]:
    """The routing and the experts of a layer whose combine weights multiply the inputs of `experts`."""
    if not isinstance(routing, xp.SlotRouting):
        return xp.SoftRouting(routing.combine, routing.dispatch), experts
    weight = routing.weight
    filled = xp.cast(routing.token < routing.tokens, weight.dtype)

    def weighted(slots: Array) -> Array:
        return experts(xp.cast(xp.promote(slots) * weight[..., None], slots.dtype))

    return xp.SlotRouting(routing.token, filled, routing.slot, routing.tokens), weighted


def _copied(xp: RoutingNamespace[Array, Any, Any], layer: Callable[..., Array], tokens: Array, routing: Any) -> Array:
    """The output of the copy experts. For a sparse routing, this is the token times its total weight, without moving tokens."""
    if not isinstance(routing, xp.SlotRouting):
        return layer(tokens, routing, lambda slots: slots)
    x = xp.promote(tokens)
    weight = layer(x[:, :, :1], routing, lambda slots: xp.full(tuple(slots.shape), 1.0, slots))
    return xp.cast(weight * x, tokens.dtype)


def _constants(xp: RoutingNamespace[Array, Any, Any], constants: Mapping[str, Array], width: int) -> dict[str, Array]:
    check_part_names("constants", constants, zero_computation_experts.AXES)
    for name, axes in zero_computation_experts.AXES.items():
        check_scores(name, constants[name], axes)
    check_constant_sizes(constants, width)
    return {name: xp.promote(constants[name]) for name in zero_computation_experts.AXES}


def _constant_outputs(xp: RoutingNamespace[Array, Any, Any], slots: Array, constants: Mapping[str, Array]) -> Array:
    """slots (G, n, C, D) -> (G, n, C, D)."""
    x, *_ = xp.promote_all(slots, constants["value"])
    weights = xp.softmax(x @ xp.cast(constants["mix"], x.dtype), -1)
    result = weights[..., :1] * x + weights[..., 1:] * xp.cast(constants["value"], x.dtype)[:, None]
    return xp.cast(result, slots.dtype)


def _latent(xp: RoutingNamespace[Array, Any, Any], latent: Mapping[str, Array], width: int) -> Mapping[str, Array]:
    check_part_names("latent", latent, latent_experts.AXES, optional=("norm",))
    for name in latent:
        check_scores(name, latent[name], latent_experts.AXES[name])
    check_size("down", latent["down"], 0, width, "the width of tokens")
    if "norm" in latent:
        check_size("norm", latent["norm"], 0, latent["down"].shape[1], "the latent width of down")
    return latent


def _raised(xp: RoutingNamespace[Array, Any, Any], y: Array, latent: Mapping[str, Array], epsilon: float) -> Array:
    """(G, T, L) -> (G, T, D')."""
    check_size("up", latent["up"], 0, y.shape[2], "the output width of w2")
    if "norm" in latent:
        check_size("norm", latent["norm"], 0, y.shape[2], "the output width of w2")
        x = xp.promote(y)
        mean = xp.mean(xp.square(x), -1, keepdims=True)
        y = xp.cast(x * xp.rsqrt(mean + epsilon) * xp.cast(latent["norm"], x.dtype), y.dtype)
    result: Array = y @ xp.cast(latent["up"], y.dtype)
    return result


def _served(
    xp: RoutingNamespace[Array, Any, Any],
    mlp: Callable[..., Array],
    tokens: Array,
    y: Array,
    shared: Mapping[str, Array],
    **options: Any,
) -> Array:
    """The weighted output (G, T, D') of the shared expert."""
    check_part_names("shared", shared, (*gated_experts.AXES, "gate"), optional=gated_experts.OPTIONAL)
    alone = {name: value[None] for name, value in shared.items() if name != "gate"}
    served = mlp(tokens[:, None], alone, **options)[:, 0]
    check_size("w2", y, 2, served.shape[2], "the output width of the shared expert")
    if "gate" not in shared:
        return served
    check_scores("gate", shared["gate"], "width")
    check_size("gate", shared["gate"], 0, tokens.shape[2], "the width of tokens")
    x = xp.promote(tokens)
    weight = xp.sigmoid(x @ xp.cast(shared["gate"], x.dtype)[:, None])
    return xp.cast(weight * xp.promote(served), served.dtype)
