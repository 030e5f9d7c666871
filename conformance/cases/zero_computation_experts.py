"""Cases of layers whose router also chooses constant experts, copy experts and zero experts."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, call, composed, tensor
from moespec.conformance.author.inputs import distinct, experts, grid, prefixed, scores, tokens
from moespec.conformance.author.variant import Spec, Variant, fixed, variant
from moespec.conformance.format import Tensor
from moespec.spec.routing import Routing

NAME = "zero_computation_experts"
G, T, D = 2, 6, 4


def cases() -> Iterator[Definition]:
    for name, kind, purpose, constants, copies, zeros, capacity in (
        ("copies", "value", "Two MLPs and two copy experts, room for all.", 0, 2, 0, T),
        ("zeros", "value", "A copy expert and a zero expert, in this order.", 0, 1, 1, T),
        ("constants", "value", "Two constant experts with their own vectors.", 2, 0, 0, 4),
        ("dropped", "overflow", "All kinds of experts, and experts that are full.", 1, 1, 1, 2),
        ("gradient", "gradient", "By tokens, scores and the parameters of all kinds.", 2, 1, 1, T),
    ):
        key, count = f"zero_computation/{name}", 2 + constants + copies + zeros
        routed = experts(key, 2, gated=True, biased=False)
        values = distinct(key, (G, T, count)) if kind == "gradient" else scores(key, (G, T, count))
        inputs = {"tokens": tokens(key), "scores": values, **prefixed(routed)}
        arguments: dict[str, Any] = {"params": {each: f"experts/{each}" for each in routed}}
        if constants:
            inputs |= prefixed(parameters(key, constants), "constants")
            arguments["constants"] = {each: f"constants/{each}" for each in ("value", "mix")}
        allocation = call("token_choice", {"scores": "scores"}, choices=2, capacity=capacity)
        arguments = {"tokens": "tokens", "routing": allocation.name, **arguments}
        counts: dict[str, Any] = {each: number for each, number in (("copies", copies), ("zeros", zeros)) if number}
        layer = call("moe_mlp", arguments, activation="silu", **counts)
        flags = ("overflow_drop",) if kind == "overflow" else ()
        yield composed(NAME, name, kind, purpose, *flags, inputs=inputs, stages=(allocation, layer))
    yield _all_kinds()


STEP = 0.0625 + 2.0**-12
"""A step of numbers that bfloat16 cannot represent."""


def _all_kinds() -> Definition:
    """Return a case of a layer with all kinds of experts, a gated shared expert, and MLPs at a latent width."""

    def fine(name: str, shape: tuple[int, ...], axes: str) -> Tensor:
        return tensor(grid(f"zero_computation/all/{name}", shape, reach=1.0, step=STEP), axes)

    L, H = 3, 5
    inputs = {
        "tokens": fine("tokens", (G, T, D), "groups tokens width"),
        "scores": scores("zero_computation/all", (G, T, 7)),
        "experts/w1": fine("w1", (3, L, H), "experts latent hidden"),
        "experts/w2": fine("w2", (3, H, L), "experts hidden latent"),
        "shared/w1": fine("shared/w1", (D, H), "width hidden"),
        "shared/w2": fine("shared/w2", (H, D), "hidden width"),
        "shared/gate": fine("gate", (D,), "width"),
        "latent/down": fine("down", (D, L), "width latent"),
        "latent/norm": fine("norm", (L,), "latent"),
        "latent/up": fine("up", (L, D), "latent width"),
        "constants/value": fine("value", (2, D), "experts width"),
        "constants/mix": fine("mix", (2, D, 2), "experts width pair"),
    }
    arguments: dict[str, Any] = {"tokens": "tokens", "routing": "token_choice"}
    for argument, prefix in (("params", "experts"), ("shared",) * 2, ("latent",) * 2, ("constants",) * 2):
        names = [name.partition("/")[2] for name in inputs if name.startswith(f"{prefix}/")]
        arguments[argument] = {name: f"{prefix}/{name}" for name in names}
    allocation = call("token_choice", {"scores": "scores"}, choices=3, capacity=4)
    layer = call("moe_mlp", arguments, copies=1, zeros=1, activation="silu")
    purpose = "All kinds of experts in one layer, with numbers that bfloat16 does not have."
    return composed(NAME, "all_kinds", "value", purpose, inputs=inputs, stages=(allocation, layer))


def parameters(key: str, constants: int) -> dict[str, Tensor]:
    """Return the vectors of constant experts and the linear maps of their mixing weights."""
    return {
        "value": tensor(grid(f"{key}/value", (constants, D), reach=1.0), "experts width"),
        "mix": tensor(grid(f"{key}/mix", (constants, D, 2), reach=1.0), "experts width pair"),
    }


def _weight(combine: Array, copies: int, options: Mapping[str, Any]) -> Array:
    """Return the total weight of the copy experts for each token (groups, tokens)."""
    start = combine.shape[2] - options.get("zeros", 0) - copies
    weight: Array = combine[:, :, start : start + copies].sum(axis=(2, 3))
    return weight


def copies_of_weight_one(
    B: Spec, tokens: Array, routing: Any, params: Any, *, copies: int = 0, **options: Any
) -> Array:
    """A chosen copy expert adds the token with weight 1, not with the combine weight."""
    right = B.moe_mlp(tokens, routing, params, copies=copies, **options)
    if not copies:
        return right
    dense = routing.dense()
    return right + _weight(dense.dispatch - dense.combine, copies, options)[..., None] * tokens


def copies_without_the_routed_scale(
    B: Spec, tokens: Array, routing: Any, params: Any, *, copies: int = 0, **options: Any
) -> Array:
    """A factor on all combine weights, here 2.5, does not apply to copy experts."""
    right = B.moe_mlp(tokens, routing, params, copies=copies, **options)
    if not copies:
        return right
    weight = _weight(routing.dense().combine, copies, options)
    return right + (1 / 2.5 - 1) * weight[..., None] * tokens


def division_without_zero_experts(
    B: Spec, tokens: Array, routing: Any, params: Any, *, zeros: int = 0, **options: Any
) -> Array:
    """The weights of zero experts do not take part in the division of a token's weights, so the other weights are larger."""
    if not zeros:
        return B.moe_mlp(tokens, routing, params, zeros=zeros, **options)
    dense = routing.dense()
    total = dense.combine.sum(axis=(2, 3), keepdims=True)
    others = dense.combine[:, :, :-zeros].sum(axis=(2, 3), keepdims=True)
    combine = dense.combine * np.where(others > 0, total / np.where(others > 0, others, 1), 1)
    return B.moe_mlp(tokens, B.SoftRouting(dense.dispatch, combine), params, zeros=zeros, **options)


def choices_of_copies_also_at_the_first_expert(
    B: Spec, tokens: Array, routing: Any, params: Any, *, copies: int = 0, **options: Any
) -> Array:
    """A choice of a copy expert also sends the token, with its weight, through the first MLP."""
    right = B.moe_mlp(tokens, routing, params, copies=copies, **options)
    if not copies:
        return right
    weight = _weight(routing.dense().combine, copies, options)
    form = {name: options[name] for name in ("gelu", "activation") if name in options}
    first = B.expert_mlp(tokens[:, None], {name: value[:1] for name, value in params.items()}, **form)[:, 0]
    return right + weight[..., None] * first


def zero_experts_that_copy(B: Spec, tokens: Array, routing: Any, params: Any, **options: Any) -> Array:
    """A zero expert returns the token, as the zero-computation experts of LongCat-Flash do."""
    zeros = options.get("zeros", 0)
    return B.moe_mlp(tokens, routing, params, **{**options, "zeros": 0, "copies": options.get("copies", 0) + zeros})


def constants_without_mix(B: Spec, tokens: Array, routing: Any, params: Any, **options: Any) -> Array:
    """A constant expert returns its vector alone, without the token."""
    constants = options.get("constants")
    if constants is None:
        return B.moe_mlp(tokens, routing, params, **options)
    others = {**options, "constants": None, "zeros": options.get("zeros", 0)}
    count = len(constants["value"])
    dense = routing.dense()
    start = len(params["w1"])
    weight = dense.combine[:, :, start : start + count].sum(axis=3)
    rest = np.delete(np.arange(dense.dispatch.shape[2]), np.arange(start, start + count))
    kept = B.SoftRouting(*Routing(dense.dispatch[:, :, rest], dense.combine[:, :, rest]))
    return B.moe_mlp(tokens, kept, params, **others) + weight @ constants["value"]


def _swapped(constants: Any) -> Any:
    return None if constants is None else {**constants, "mix": constants["mix"][..., ::-1]}


def variants() -> Iterator[Variant]:
    yield variant(copies_of_weight_one, "moe_mlp", ledger="ZC-1", row=NAME)
    who = "sgl-project/sglang (issue 10019)"
    yield variant(copies_without_the_routed_scale, "moe_mlp", ledger="ZC-1b", who=who, row=NAME)
    yield variant(division_without_zero_experts, "moe_mlp", ledger="ZC-2b", row=NAME)
    yield variant(
        choices_of_copies_also_at_the_first_expert,
        "moe_mlp",
        ledger="ZC-1",
        who="ml-explore/mlx-lm (before pull request 508)",
        row=NAME,
    )
    yield variant(zero_experts_that_copy, "moe_mlp", ledger="ZC-2", row=NAME)
    yield variant(constants_without_mix, "moe_mlp", ledger="ZC-3b", row=NAME)
    computes = "A constant expert weights the token by the second mixing weight and its vector by the first."
    yield fixed("constants_with_swapped_weights", computes, "moe_mlp", "ZC-3", row=NAME, constants=_swapped)
