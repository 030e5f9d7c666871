"""Cases of the experts, the layer around a routing, and the metrics of a routing."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, call, composed, function, tensor
from moespec.conformance.author.inputs import (
    CROWD,
    both,
    distinct,
    experts,
    grid,
    groups_tokens,
    integers,
    permutation,
    prefixed,
    scores,
    to_bfloat16,
    tokens,
)
from moespec.conformance.author.variant import Spec, Variant, fixed, variant
from moespec.conformance.format import Stage, Tensor

NAME = "moe_layer"
G, T, E, D = 2, 6, 3, 4


def cases() -> Iterator[Definition]:
    yield from _experts()
    yield from _layers()
    yield from _mlp_layers()


PARAMS = {name: f"experts/{name}" for name in ("w1", "b1", "w2", "b2")}


def _experts() -> Iterator[Definition]:
    def mlp(name: str, purpose: str, gelu: str, kind: str = "value", **sizes: Any) -> Definition:
        slots = tensor(grid(f"layer/{name}", (G, E, 2, D)), "groups experts capacity width")
        inputs = {"inputs": slots, **prefixed(experts(f"layer/{name}", **sizes))}
        stages = (call("expert_mlp", {"inputs": "inputs", "params": PARAMS}, gelu=gelu),)
        return composed(NAME, name, kind, purpose, "gelu_form", inputs=inputs, stages=stages)

    yield mlp("experts_tanh", "Expert MLPs with the tanh form of GELU.", "tanh")
    yield mlp("experts_erf", "Expert MLPs with the exact GELU.", "erf")
    yield mlp("experts_tanh_gradient", "By slots, weights and biases.", "tanh", "gradient")
    yield mlp("experts_erf_gradient", "The same in the exact form.", "erf", "gradient")
    yield mlp("experts_width", "Experts whose output has another width.", "tanh", out=3)


def _around(allocation: Stage, *, mlps: bool = True, metrics: bool = True) -> tuple[Stage, ...]:
    """Returns three calls: the allocation, the metrics of its routing (if `metrics`), and a layer that uses the routing."""
    mlp = function("expert_mlp", {"params": PARAMS}, gelu="tanh") if mlps else function("identity")
    layer = call("moe_layer", {"tokens": "tokens", "routing": allocation.name, "experts": mlp})
    return (allocation, *((call("routing_metrics", {"routing": allocation.name}),) if metrics else ()), layer)


def _layer(
    name: str, kind: str, purpose: str, allocation: str, values: Tensor, *flags: str, mlps: bool = True, **options: Any
) -> Definition:
    soft = allocation == "soft_routing"
    g, t, e = (G, T, E) if soft else values.array.shape
    read = {"tokens": "tokens", "slots": "slots"} if soft else {"scores": "scores"}
    inputs = {"tokens": tokens(f"layer/{name}", (g, t, D)), "slots" if soft else "scores": values}
    inputs |= prefixed(experts(f"layer/{name}", e)) if mlps else {}
    stages = _around(call(allocation, read, **options), mlps=mlps, metrics=kind != "gradient")
    return composed(NAME, name, kind, purpose, *flags, inputs=inputs, stages=stages)


DROP, EMPTY = "overflow_drop", "empty_slot"
TOKEN, EXPERT, SOFT = "token_choice", "expert_choice", "soft_routing"
SIZE = "degenerate_size"


def _layers() -> Iterator[Definition]:
    yield _layer(TOKEN, "value", "Two choices, room for all.", TOKEN, scores("layer/a"), choices=2, capacity=T)
    purpose = "A dropped token gets 0; an empty slot reaches nobody although its expert has biases."
    yield _layer("dropped", "overflow", purpose, TOKEN, both(CROWD), DROP, EMPTY, choices=1, capacity=2)
    purpose = "A token may sit in several slots, or in none."
    yield _layer(EXPERT, "value", purpose, EXPERT, scores("layer/b"), "uncovered_token", capacity=2)
    slots = tensor(grid("layer/slots", (D, 3, 2)), "width experts capacity")
    purpose = "Slots mix the tokens themselves, not the normalised ones."
    yield _layer("soft", "value", purpose, SOFT, slots, "unnormalised_tokens")
    uniform: dict[str, Any] = {"dispatch": "uniform", "combine": "uniform"}
    yield _layer("soft_uniform", "value", "Every slot sees the mean token.", SOFT, slots, "ablation", **uniform)
    purpose = "Dispatch and combine alone."
    yield _layer(
        "identity_experts", "value", purpose, TOKEN, scores("layer/d"), DROP, mlps=False, choices=2, capacity=2
    )
    yield from _special_layers()


def _special_layers() -> Iterator[Definition]:
    """Returns layer cases with equal scores, layer cases of small sizes, and layer gradients."""
    equal = groups_tokens(np.full((G, T, E), 0.25))
    yield _layer("tied", "tie", "Equal scores.", TOKEN, equal, "tie_order", choices=2, capacity=T)
    alone = scores("layer/e", (1, 1, E))
    yield _layer("one_token", "degenerate", "One token.", TOKEN, alone, SIZE, choices=2, capacity=1)
    purpose = "One expert with room for all."
    yield _layer("one_expert", "degenerate", purpose, EXPERT, scores("layer/f", (G, T, 1)), SIZE, capacity=T)
    purpose = "By tokens, scores and expert weights, with drops."
    apart = distinct("layer/g", (G, T, E))
    yield _layer("gradient_token_choice", "gradient", purpose, TOKEN, apart, DROP, choices=2, capacity=2)
    purpose = "Tokens in several slots add their gradients."
    yield _layer("gradient_expert_choice", "gradient", purpose, EXPERT, distinct("layer/h", (G, T, E)), capacity=2)
    inside = grid("layer/holes/j", (G, T, E)) > 0
    holes = groups_tokens(np.where(inside, distinct("layer/holes/s", (G, T, E)).array, -0.25))
    purpose = "Empty slots carry none, though their experts have an output, and some the last token."
    yield _layer("gradient_holes", "gradient", purpose, EXPERT, holes, EMPTY, capacity=4, drop_zero=True)
    yield _zero_weight()
    yield from _sums()
    slots = tensor(grid("layer/slots/g", (D, 3, 2)), "width experts capacity")
    yield _layer("gradient_soft", "gradient", "Through both softmaxes and the mixing.", SOFT, slots)


def _mlp_layers() -> Iterator[Definition]:
    """Returns cases of a layer whose experts are MLPs. In some cases most slots are empty, in others most are filled."""

    def case(
        name: str, kind: str, purpose: str, values: Tensor, *flags: str, gelu: str = "tanh", **options: Any
    ) -> Definition:
        g, t, e = values.array.shape
        name = f"mlp_{name}"
        key = f"layer/{name}"
        inputs = {"tokens": tokens(key, (g, t, D)), "scores": values, **prefixed(experts(key, e))}
        allocation = call("token_choice", {"scores": "scores"}, **options)
        return composed(
            NAME, name, kind, purpose, *flags, inputs=inputs, stages=(allocation, _perceptrons(allocation, gelu))
        )

    drop, many = "overflow_drop", 8
    chosen = groups_tokens(np.eye(4)[[[0, 1, 0], [1, 3, 1]]])
    purpose = "Room for all, of several groups, and an expert without a token in any of them."
    yield case("idle", "value", purpose, chosen, "unused_expert", choices=1, capacity=3)
    yield case("room", "value", "Two choices, room for all.", scores("layer/i"), gelu="erf", choices=2, capacity=T)
    crowd = groups_tokens(np.eye(many)[np.array([[0, 0, 0, 2, 5, 2], [7, 7, 2, 7, 0, 7]])] + 0.125)
    purpose = "More than twice as many slots as tokens, and tokens without a slot all the same."
    yield case("dropped", "overflow", purpose, crowd, drop, choices=1, capacity=2)
    yield case("full", "value", "As many slots as choices.", scores("layer/j"), drop, choices=2, capacity=4)
    purpose = "By tokens, scores and expert weights, of which an expert without tokens has none."
    apart = distinct("layer/k", (G, T, E)).array
    idle = groups_tokens(np.concatenate([apart, np.zeros_like(apart[..., :1])], axis=2))
    yield case("gradient", "gradient", purpose, idle, "unused_expert", choices=2, capacity=T)
    apart = distinct("layer/l", (G, T, many)).array + (crowd.array > 1)
    purpose = "With tokens that have no slot."
    yield case("gradient_dropped", "gradient", purpose, groups_tokens(apart), drop, choices=1, capacity=2)
    yield from _mlp_gates()


def _perceptrons(allocation: Stage, gelu: str = "tanh") -> Stage:
    """Returns a call of `moe_mlp` with the routing of `allocation`."""
    return call("moe_mlp", {"tokens": "tokens", "routing": allocation.name, "params": PARAMS}, gelu=gelu)


def _mlp_gates() -> Iterator[Definition]:
    """Returns cases in which tokens may choose different numbers of experts, as in DSelect-k."""
    gate = scores("layer/gates/s").array
    some = np.where(grid("layer/gates", (G, T, E)) > 0, gate, 0.0)
    for name, kind, purpose, values in (
        ("mlp_gates", "value", "A token has any number of experts.", some),
        ("mlp_gates_gradient", "gradient", "A token has every expert.", gate),
    ):
        key = f"layer/{name}"
        inputs = {"tokens": tokens(key), "gate": groups_tokens(values), **prefixed(experts(key, E))}
        gates = call("dselect_k_routing", {"gate": "gate"})
        yield composed(NAME, name, kind, purpose, inputs=inputs, stages=(gates, _perceptrons(gates)))


def _zero_weight() -> Definition:
    """Returns a case in which some filled slots have weight 0, including all filled slots of the third expert."""
    weights = groups_tokens([[[0.5, 0.25, 0.0], [0.75, 0.5, 0.0], [0.5, 0.25, 0.0], [0.0, 0.0, 0.0]]])
    scores = groups_tokens([[[0.5, 0.25, 0.125], [0.25, 0.5, 0.125], [0.125, 0.25, 0.5], [0.5, 0.25, 0.125]]])
    allocation = call("token_choice", {"scores": "scores", "combine_scores": "weights"}, choices=1, capacity=2)
    metrics = call("routing_metrics", {"routing": "token_choice"})
    purpose = "A token that has a slot is covered with the weight 0, too."
    inputs = {"scores": scores, "weights": weights}
    return composed(NAME, "zero_weight", "value", purpose, inputs=inputs, stages=(allocation, metrics))


def _sums() -> Iterator[Definition]:
    """Returns cases with weighted sums of powers of two.

    In some sums, bfloat16 loses every small term that is added to a large term. In other sums, two terms nearly cancel, so the result
    depends on digits of the weights that bfloat16 drops. Backends may use different code to sum over choices and to sum over slots.
    """
    signs = grid("layer/long/signs", (G, T, D)) >= 0
    powers = np.where(signs, 1.0, -1.0) * 2.0 ** integers("layer/long", (G, T, D), -2, 2)
    drawn = {"tokens": tensor(powers, "groups tokens width")}
    weights = np.full((G, T, 8), 255 / 2**16)
    weights[..., 0] = 1.0
    counts = np.stack([permutation(f"layer/difference/{group}", 2 * T).reshape(T, 2) for group in range(G)])
    factors = {
        "factors": tensor(np.concatenate([np.ones((G, T, 1)), counts / 64], axis=2), "groups tokens width"),
        "kernel": tensor(np.array([[1, -1], [1 / 64, 0], [0, -1 / 64]]), "width experts"),
    }
    product = call("router_logits", {"tokens": "factors", "kernel": "kernel"})
    long = "Eight experts, seven of them with a weight that bfloat16 loses when it adds one after the other."
    small = "Weights that differ from 1 and -1 by multiples of 2^-12, and a sum that float32 does not round."
    for name, purpose, read, inputs, before, choices, unrounded in (
        ("long_sum", long, "scores", {"scores": groups_tokens(weights)}, (), 8, ()),
        ("small_difference", small, "router_logits", factors, (product,), 2, ("moe_layer/output",)),
    ):
        for suffix, routing in (
            ("", call("token_choice", {"scores": read}, choices=choices, capacity=T)),
            ("_slots", call("expert_choice", {"scores": read}, capacity=T)),
        ):
            stages = (*before, *_around(routing, mlps=False, metrics=False))
            arguments: dict[str, Any] = {"inputs": {**drawn, **inputs}, "stages": stages, "unrounded": unrounded}
            yield composed(NAME, f"{name}{suffix}", "value", purpose, "low_precision", **arguments)


Experts = Callable[[Any], Any]


def _combined(dispatch: Array, combine: Array, tokens: Array, experts: Experts) -> Any:
    """Dispatches tokens, applies the experts, and combines their outputs. dispatch, combine: (groups, tokens, experts, capacity)."""
    return np.einsum("gtec,gecd->gtd", combine, experts(np.einsum("gtec,gtd->gecd", dispatch, tokens)))


def dropped_tokens_pass(B: Spec, tokens: Array, routing: Any, experts: Experts) -> Array:
    """A token without a slot passes through unchanged instead of becoming 0."""
    result = B.moe_layer(tokens, routing, experts)
    lost = (routing.dense().dispatch == 0).all(axis=(2, 3))
    passed = np.zeros_like(result)
    width = min(tokens.shape[2], result.shape[2])
    passed[..., :width] = tokens[..., :width]
    return np.where(lost[..., None], passed, result)


def weights_before_experts(B: Spec, tokens: Array, routing: Any, experts: Experts) -> Array:
    """The combine weights multiply an expert's input, not its output."""
    right = B.moe_layer(tokens, routing, experts)
    dispatch, combine = routing.dense()
    return right if isinstance(routing, B.SoftRouting) else _combined(combine, dispatch, tokens, experts)


def weights_left_out(B: Spec, tokens: Array, routing: Any, experts: Experts) -> Array:
    """Expert outputs are added without combine weights."""
    right = B.moe_layer(tokens, routing, experts)
    dispatch, _ = routing.dense()
    return right if isinstance(routing, B.SoftRouting) else _combined(dispatch, dispatch, tokens, experts)


def weights_applied_twice(B: Spec, tokens: Array, routing: Any, experts: Experts) -> Array:
    """The combine weights multiply an expert's input and its output."""
    right = B.moe_layer(tokens, routing, experts)
    _, combine = routing.dense()
    return right if isinstance(routing, B.SoftRouting) else _combined(combine, combine, tokens, experts)


def output_biases_not_weighted(B: Spec, tokens: Array, routing: Any, experts: Experts) -> Array:
    """The experts' output biases are added without combine weights."""
    right, params = B.moe_layer(tokens, routing, experts), getattr(experts, "keywords", {}).get("params")
    if params is None or isinstance(routing, B.SoftRouting):
        return right
    dispatch, combine = routing.dense()
    return right + np.einsum("gtec,ed->gtd", dispatch - combine, params["b2"])


def straight_through_dispatch(B: Spec, tokens: Array, routing: Any, experts: Experts) -> Array:
    """Gradients treat each dispatch entry of a sparse routing as if it changed by the same amount as the combine weight of its slot."""
    right = B.moe_layer(tokens, routing, experts)
    dispatch, combine = routing.dense()
    if isinstance(routing, B.SoftRouting):
        return right
    return _combined(dispatch * (1 + combine - combine.real), combine, tokens, experts)


def entropy_in_bits(B: Spec, routing: Any) -> Any:
    """The routing entropy is in bits, not in nats."""
    metrics = B.routing_metrics(routing)
    return {**metrics, "entropy": metrics["entropy"] / np.log(2)}


def combine_weights_in_bfloat16(B: Spec, tokens: Array, routing: Any, experts: Callable[[Any], Any]) -> Array:
    """The combine weights are rounded to bfloat16 before they multiply the expert outputs."""
    part = "weight" if hasattr(routing, "weight") else "combine"
    weights = getattr(routing, part)
    rounded = weights + (to_bfloat16(weights.real).astype(np.float64) - weights.real)
    return B.moe_layer(tokens, routing._replace(**{part: rounded}), experts)


def variants() -> Iterator[Variant]:
    yield variant(dropped_tokens_pass, "moe_layer", ledger="LA-2b")
    yield variant(weights_before_experts, "moe_layer", who="NVIDIA/TensorRT-LLM (Llama 4; pull request 3492)")
    yield variant(weights_left_out, "moe_layer", who="tjake/Jlama (pull request 201)")
    yield variant(weights_applied_twice, "moe_layer", who="vllm-project/vllm (pull request 43694)")
    yield variant(output_biases_not_weighted, "moe_layer", who="NVIDIA-NeMo/Automodel (pull request 2591)")
    yield variant(straight_through_dispatch, "moe_layer", who="lucidrains/st-moe-pytorch")
    computes = "The experts always use the exact GELU."
    yield fixed("experts_with_exact_gelu", computes, "expert_mlp", "LA-1b", gelu="erf")
    computes = "The experts always use the tanh approximation of GELU."
    yield fixed("experts_with_approximate_gelu", computes, "expert_mlp", "LA-1b", gelu="tanh")
    computes = "The MLPs of the layer always use the exact GELU."
    yield fixed("perceptrons_with_exact_gelu", computes, "moe_mlp", "LA-1b", gelu="erf")
    computes = "The MLPs of the layer always use the tanh approximation of GELU."
    yield fixed("perceptrons_with_approximate_gelu", computes, "moe_mlp", "LA-1b", gelu="tanh")
    yield variant(entropy_in_bits, "routing_metrics")
    yield variant(combine_weights_in_bfloat16, "moe_layer", who="huggingface/transformers")
