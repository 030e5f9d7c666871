"""Cases of soft routing."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, single, tensor
from moespec.conformance.author.inputs import grid, to_bfloat16
from moespec.conformance.author.variant import Spec, Variant, fixed, variant
from moespec.spec.numerics import normalize_l2

NAME = "soft_routing"
G, D = 2, 4


def cases() -> Iterator[Definition]:
    yield from _values()


def case(name: str, kind: str, purpose: str, *flags: str, shape: tuple[int, ...] = (G, 6, D, 3, 2),
         scale: float | None = 1.0, tokens: Any = None, slots: Any = None, **options: Any) -> Definition:  # fmt: skip
    g, t, d, e, c = shape
    tokens = grid(f"soft/{name}", (g, t, d)) if tokens is None else tokens
    slots = grid(f"soft/{name}/slots", (d, e, c)) if slots is None else slots
    inputs = {"tokens": tensor(tokens, "groups tokens width"), "slots": tensor(slots, "width experts capacity")}
    if scale is not None:
        inputs["scale"] = tensor(np.float32(scale), "")
    return single(NAME, NAME, name, kind, purpose, *flags, **{**inputs, **options})


JOINT, FORMS, ABLATION, SIZE = "joint_softmax", "norm_form", "ablation", "degenerate_size"


def _values() -> Iterator[Definition]:
    yield case("values", "value", "Dispatch sums to 1 over tokens, combine over all slots together.", JOINT)
    yield case("scale", "value", "A scale of -2.5 turns the logits round and sharpens both.", JOINT, scale=-2.5)
    yield case("square", "value", "As many tokens as experts and slots.", JOINT, shape=(G, 4, D, 4, 4))
    short = grid("soft/small", (G, 6, D), reach=0.0078125, step=0.00048828125)
    yield case("small_paper", "value", "Tokens so short that epsilon counts, in the paper's form.", FORMS, tokens=short)
    purpose = "The same tokens in the form of the public code."
    yield case("small_rsqrt", "value", purpose, FORMS, tokens=short, norm_form="rsqrt")
    empty, blank = grid("soft/empty", (G, 6, D)), grid("soft/empty/slots", (D, 3, 2))
    empty[:, 2] = 0
    blank[:, 1, 0] = 0
    zero: dict[str, Any] = {"tokens": empty, "slots": blank}
    yield case("zero_token", "degenerate", "A token and a slot of norm 0 have logits 0.", FORMS, **zero)
    yield case("zero_token_rsqrt", "degenerate", "The same in the other form.", FORMS, **zero, norm_form="rsqrt")
    purpose = "Without normalisation the scale is not used."
    yield case("unnormalised", "value", purpose, FORMS, scale=2.0, normalize=False)
    yield case("scale_zero", "tie", "A scale of 0 gives uniform weights.", scale=0.0)
    yield case("default_scale", "value", "The scale is 1 if it is not given.", scale=None)
    yield from _ablations()
    yield from _gradients()


def _ablations() -> Iterator[Definition]:
    """Returns ablation cases, which replace one or both softmaxes, and cases of small sizes."""
    for first, second in (("soft", "uniform"), ("uniform", "soft"), ("uniform", "uniform")):
        purpose = f"Ablation: dispatch {first}, combine {second}."
        yield case(f"{first}_{second}", "value", purpose, ABLATION, dispatch=first, combine=second)
    purpose = "Ablation: dispatch is 1 over the number of tokens, combine 1 over that of slots, which is larger."
    uniform: dict[str, Any] = {"shape": (G, 5, D, 3, 2), "dispatch": "uniform", "combine": "uniform"}
    yield case("uniform_more_slots", "value", purpose, ABLATION, **uniform)
    purpose = "Ablation: the tokens are dealt to the experts in turn, token t to expert t % E."
    yield case("identity", "value", purpose, ABLATION, dispatch="identity", combine="identity")
    yield case("one_token", "degenerate", "One token fills every slot.", SIZE, shape=(1, 1, D, 3, 2))
    yield case("one_slot", "degenerate", "One expert with one slot.", SIZE, shape=(G, 6, D, 1, 1))


def _gradients() -> Iterator[Definition]:
    """Returns gradient cases of dispatch and of combine."""
    yield case("gradient_dispatch", "gradient", "Through the softmax over tokens.", scale=1.5, of="dispatch")
    yield case("gradient_combine", "gradient", "Through the softmax over slots.", scale=1.5, of="combine")
    yield case("gradient_rsqrt", "gradient", "In the other form.", scale=1.5, of="combine", norm_form="rsqrt")
    for name, other in (("dispatch", "combine"), ("combine", "dispatch")):
        alone: dict[str, Any] = {"of": name, other: "uniform", "normalize": False}
        purpose = f"Of {name}, unnormalised, with {other} uniform."
        yield case(f"gradient_{name}_alone", "gradient", purpose, ABLATION, scale=1.5, **alone)
    origin = grid("soft/origin", (G, 6, D))
    origin[:, 1] = 0
    purpose = "At a token of norm 0 the norm counts as a constant."
    yield case("gradient_zero_token", "gradient", purpose, FORMS, tokens=origin, of="dispatch")


# Variants. The shape of tokens is (groups, tokens, width), and the shape of slots is (width, experts, capacity).


def combine_over_the_slots_of_each_expert(B: Spec, *arguments: Any, combine: str = "soft", **options: Any) -> Any:
    """The combine softmax is taken separately over the slots of each expert."""
    routing = B.soft_routing(*arguments, combine=combine, **options)
    if combine != "soft":
        return routing
    return routing._replace(combine=routing.combine / routing.combine.sum(axis=3, keepdims=True))


def combine_over_experts(B: Spec, *arguments: Any, combine: str = "soft", **options: Any) -> Any:
    """The combine softmax is taken over the experts for each slot."""
    routing = B.soft_routing(*arguments, combine=combine, **options)
    if combine != "soft":
        return routing
    return routing._replace(combine=routing.combine / routing.combine.sum(axis=2, keepdims=True))


def _normalised(norm: Callable[[Any, int], Any]) -> Callable[..., Any]:
    """Returns a soft-routing function that normalises tokens and slots by `norm(x, axis)`."""

    def soft_routing(B: Spec, tokens: Array, slots: Array, *, scale: Array = 1.0, **options: Any) -> Any:
        right = B.soft_routing(tokens, slots, scale=scale, **options)
        if not options.get("normalize", True):
            return Unnormalised(*right)
        return B.soft_routing(norm(tokens, 2), scale * norm(slots, 0), **{**options, "normalize": False})

    return soft_routing


class Unnormalised(NamedTuple):
    """A soft routing without normalisation. `_mixing` does not normalise the tokens of an `Unnormalised` routing."""

    dispatch: Any
    combine: Any

    def dense(self) -> "Unnormalised":
        """The same tensors."""
        return self


def _unit(x: Array, axis: int) -> Any:
    """`x / max(norm, 1e-12)`."""
    return x / np.maximum(np.sqrt(np.sum(x * x, axis=axis, keepdims=True)), 1e-12)


def _rms(x: Array, axis: int) -> Any:
    """`x / max(norm, 1e-12) * sqrt(n)`."""
    return _unit(x, axis) * np.sqrt(x.shape[axis])


def _mixing(norm: Callable[[Any, int], Any]) -> Callable[..., Any]:
    """Returns a layer function that normalises tokens by `norm` before soft routing mixes the tokens into slots."""

    def moe_layer(B: Spec, tokens: Array, routing: Any, experts: Any) -> Any:
        right = B.moe_layer(tokens, routing, experts)
        return B.moe_layer(norm(tokens, 2), routing, experts) if isinstance(routing, B.SoftRouting) else right

    return moe_layer


def scale_without_normalisation(
    B: Spec, tokens: Array, slots: Array, *, scale: Array = 1.0, normalize: bool = True, **options: Any
) -> Any:
    """The scale multiplies the slots even without normalisation."""
    right = B.soft_routing(tokens, slots, scale=scale, normalize=normalize, **options)
    return right if normalize else B.soft_routing(tokens, scale * slots, normalize=False, **options)


def slots_dealt_round_robin(B: Spec, *arguments: Any, **options: Any) -> Any:
    """In the flattened list of slots, slot i belongs to expert i % E."""
    return B.SoftRouting(*(_dealt(array) for array in B.soft_routing(*arguments, **options)))


def _dealt(array: Array) -> Any:
    """Moves entry `c * E + e` of the flattened slots to position `e * C + c`. array: (groups, tokens, experts, capacity)."""
    groups, tokens, experts, capacity = array.shape
    return array.reshape(groups, tokens, capacity, experts).swapaxes(2, 3)


def identity_expert_by_expert(B: Spec, *arguments: Any, dispatch: str = "soft", **options: Any) -> Any:
    """The identity ablation sends token t to expert t // C, so experts are filled one after another."""
    routing = B.soft_routing(*arguments, dispatch=dispatch, **options)
    if dispatch != "identity":
        return routing
    groups, tokens, experts, capacity = routing.dispatch.shape
    filled = np.tile(np.eye(tokens).reshape(tokens, experts, capacity), (groups, 1, 1, 1))
    return B.SoftRouting(filled, filled)


def weights_in_bfloat16(B: Spec, *arguments: Any, **options: Any) -> Any:
    """Dispatch and combine are rounded to bfloat16."""
    routing = B.soft_routing(*arguments, **options)
    return B.SoftRouting(*(to_bfloat16(array.real).astype(np.float64) for array in routing))


def variants() -> Iterator[Variant]:
    yield variant(combine_over_the_slots_of_each_expert, "soft_routing", ledger="SM-5b")
    yield variant(combine_over_experts, "soft_routing", ledger="SM-5c")
    computes = "The l2 norm is always sqrt(norm**2 + epsilon)."
    yield fixed("epsilon_inside_the_root", computes, "soft_routing", "SM-1b", norm_form="rsqrt")
    computes = "The l2 norm is always norm + epsilon."
    yield fixed("epsilon_outside_the_root", computes, "soft_routing", "SM-1", norm_form="paper")
    computes = "Tokens and slots are divided by max(norm, 1e-12)."
    yield Variant("norm_clamped", computes, {"soft_routing": _normalised(_unit)}, "SM-1c")
    computes = "Tokens and slots are divided by their root mean square, so that logits are as many times larger as tokens are wide."
    yield Variant("rms_norm", computes, {"soft_routing": _normalised(_rms)}, "SM-1")
    computes = "Slots mix the normalised tokens."
    replaced = {"moe_layer": _mixing(lambda x, axis: normalize_l2(x, axis, form="paper"))}
    yield Variant("slots_mix_normalised_tokens", computes, replaced, "SM-3b")
    computes = "Tokens are divided by max(norm, 1e-12), and slots mix these."
    replaced = {"soft_routing": _normalised(_unit), "moe_layer": _mixing(_unit)}
    yield Variant("norm_clamped_and_mixed", computes, replaced, "SM-3b", "bwconrad/soft-moe")
    computes = "Tokens and slots are divided by their root mean square, and slots mix these tokens."
    replaced = {"soft_routing": _normalised(_rms), "moe_layer": _mixing(_rms)}
    yield Variant("rms_norm_and_mixed", computes, replaced, "SM-3b", "lucidrains/soft-moe-pytorch")
    yield variant(scale_without_normalisation, "soft_routing", ledger="SM-4b")
    yield fixed("scale_of_one", "The scale is not used.", "soft_routing", "SM-4b", scale=1.0)
    yield variant(slots_dealt_round_robin, "soft_routing", ledger="SM-2b")
    yield variant(identity_expert_by_expert, "soft_routing", ledger="SM-7b")
    yield variant(weights_in_bfloat16, "soft_routing", who="google-research/vmoe")
    computes = "Both softmaxes are used even if a uniform or identical weight is requested."
    yield fixed("ablations_ignored", computes, "soft_routing", dispatch="soft", combine="soft")
