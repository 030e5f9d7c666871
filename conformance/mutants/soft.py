"""Other soft routings. Tokens are (groups, tokens, width), slots (width, experts, capacity)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from moespec.conformance.draw import to_bfloat16
from moespec.conformance.mutants.definition import Mutant, wrong
from moespec.spec.numerics import normalize_l2

__all__ = ["MUTANTS"]


def exchanged(B: Any, *arguments: Any, **options: Any) -> Any:
    """Dispatch and combine are exchanged: dispatch sums to 1 over slots, combine over tokens."""
    routing = B.soft_routing(*arguments, **options)
    return B.SoftRouting(routing.combine, routing.dispatch)


def combine_over_the_slots_of_each_expert(B: Any, *arguments: Any, combine: str = "soft", **options: Any) -> Any:
    """The combine softmax is taken over the slots of each expert alone."""
    routing = B.soft_routing(*arguments, combine=combine, **options)
    if combine != "soft":
        return routing
    return routing._replace(combine=routing.combine / routing.combine.sum(axis=3, keepdims=True))


def combine_over_experts(B: Any, *arguments: Any, combine: str = "soft", **options: Any) -> Any:
    """The combine softmax is taken over experts for each slot."""
    routing = B.soft_routing(*arguments, combine=combine, **options)
    if combine != "soft":
        return routing
    return routing._replace(combine=routing.combine / routing.combine.sum(axis=2, keepdims=True))


def epsilon_inside_the_root(B: Any, tokens: Any, slots: Any, *, norm_form: str = "paper", **options: Any) -> Any:
    """The l2 norm is sqrt(norm**2 + epsilon), whatever form is asked for."""
    B.soft_routing(tokens, slots, norm_form=norm_form, **options)
    return B.soft_routing(tokens, slots, norm_form="rsqrt", **options)


def epsilon_outside_the_root(B: Any, tokens: Any, slots: Any, *, norm_form: str = "paper", **options: Any) -> Any:
    """The l2 norm is norm + epsilon, whatever form is asked for."""
    B.soft_routing(tokens, slots, norm_form=norm_form, **options)
    return B.soft_routing(tokens, slots, **options)


def _normalised(norm: Callable[[Any, int], Any]) -> Callable[..., Any]:
    """Soft routing of tokens and slots that `norm(x, axis)` normalises."""

    def soft_routing(B: Any, tokens: Any, slots: Any, *, scale: Any = 1.0, **options: Any) -> Any:
        right = B.soft_routing(tokens, slots, scale=scale, **options)
        if not options.get("normalize", True):
            return Unnormalised(*right)
        return B.soft_routing(norm(tokens, 2), scale * norm(slots, 0), **{**options, "normalize": False})

    return soft_routing


class Unnormalised(NamedTuple):
    """A soft routing of tokens that are not normalised, which slots mix as they are also under `_mixing`."""

    dispatch: Any
    combine: Any

    def dense(self) -> "Unnormalised":
        """The same tensors."""
        return self


def _unit(x: Any, axis: int) -> Any:
    """`x / max(norm, 1e-12)`."""
    return x / np.maximum(np.sqrt(np.sum(x * x, axis=axis, keepdims=True)), 1e-12)


def _rms(x: Any, axis: int) -> Any:
    """`x / max(norm, 1e-12) * sqrt(n)`."""
    return _unit(x, axis) * np.sqrt(x.shape[axis])


def _mixing(norm: Callable[[Any, int], Any]) -> Callable[..., Any]:
    """A layer in which soft slots mix normalised tokens."""

    def moe_layer(B: Any, tokens: Any, routing: Any, experts: Any) -> Any:
        right = B.moe_layer(tokens, routing, experts)
        return B.moe_layer(norm(tokens, 2), routing, experts) if isinstance(routing, B.SoftRouting) else right

    return moe_layer


def scale_without_normalisation(
    B: Any, tokens: Any, slots: Any, *, scale: Any = 1.0, normalize: bool = True, **options: Any
) -> Any:
    """The scale multiplies the slots also where nothing is normalised."""
    right = B.soft_routing(tokens, slots, scale=scale, normalize=normalize, **options)
    return right if normalize else B.soft_routing(tokens, scale * slots, normalize=False, **options)


def scale_of_one(B: Any, tokens: Any, slots: Any, *, scale: Any = 1.0, **options: Any) -> Any:
    """The scale is not used."""
    B.soft_routing(tokens, slots, scale=scale, **options)
    return B.soft_routing(tokens, slots, **options)


def never_normalised(B: Any, tokens: Any, slots: Any, **options: Any) -> Any:
    """Neither tokens nor slots are normalised."""
    B.soft_routing(tokens, slots, **options)
    return B.soft_routing(tokens, slots, **{**options, "normalize": False})


def always_normalised(B: Any, tokens: Any, slots: Any, *, normalize: bool = True, **options: Any) -> Any:
    """Tokens and slots are normalised also where they are not to be."""
    B.soft_routing(tokens, slots, normalize=normalize, **options)
    return B.soft_routing(tokens, slots, **options)


def slots_dealt_round_robin(B: Any, *arguments: Any, **options: Any) -> Any:
    """Slot i of the flattened list belongs to expert i % E."""
    return B.SoftRouting(*(_dealt(array) for array in B.soft_routing(*arguments, **options)))


def _dealt(array: Any) -> Any:
    """(groups, tokens, experts, capacity): what stands in slot `e * C + c` of the list goes to where `c * E + e` is."""
    groups, tokens, experts, capacity = array.shape
    return array.reshape(groups, tokens, capacity, experts).swapaxes(2, 3)


def weights_in_bfloat16(B: Any, *arguments: Any, **options: Any) -> Any:
    """Dispatch and combine are rounded to bfloat16."""
    routing = B.soft_routing(*arguments, **options)
    return B.SoftRouting(*(to_bfloat16(array.real).astype(np.float64) for array in routing))


def ablations_ignored(B: Any, *arguments: Any, dispatch: str = "soft", combine: str = "soft", **options: Any) -> Any:
    """Both softmaxes are used, also where a uniform or identical weight is asked for."""
    B.soft_routing(*arguments, dispatch=dispatch, combine=combine, **options)
    return B.soft_routing(*arguments, **options)


def uniform_over_slots(B: Any, *arguments: Any, dispatch: str = "soft", combine: str = "soft", **options: Any) -> Any:
    """A uniform dispatch is 1 / (E C), and a uniform combine 1 / T."""
    routing = B.soft_routing(*arguments, dispatch=dispatch, combine=combine, **options)
    tokens, slots = routing.combine.shape[1], routing.combine[0, 0].size
    return B.SoftRouting(
        routing.dispatch * (tokens / slots if dispatch == "uniform" else 1),
        routing.combine * (slots / tokens if combine == "uniform" else 1),
    )


def norms_without_gradient(B: Any, tokens: Any, slots: Any, *, scale: Any = 1.0, **options: Any) -> Any:
    """The l2 norms carry no gradient."""
    right = B.soft_routing(tokens, slots, scale=scale, **options)
    if not options.get("normalize", True):
        return right
    form = options.get("norm_form", "paper")

    def norm(x: Any, axis: int) -> Any:
        squares = np.sum(x.real * x.real, axis=axis, keepdims=True)
        return x / (np.sqrt(squares + 1e-6) if form == "rsqrt" else np.sqrt(squares) + 1e-6)

    return B.soft_routing(norm(tokens, 2), scale * norm(slots, 0), **{**options, "normalize": False})


MUTANTS = (
    wrong(exchanged, "soft_routing"),
    wrong(combine_over_the_slots_of_each_expert, "soft_routing", ledger="SM-5"),
    wrong(combine_over_experts, "soft_routing", ledger="SM-5"),
    wrong(epsilon_inside_the_root, "soft_routing", ledger="SM-1"),
    wrong(epsilon_outside_the_root, "soft_routing", ledger="SM-1"),
    Mutant(
        "norm_clamped",
        "Tokens and slots are divided by max(norm, 1e-12).",
        {"soft_routing": _normalised(_unit)},
        "SM-1",
    ),
    Mutant(
        "rms_norm",
        "Tokens and slots are divided by their root mean square, so that logits are as many times larger as tokens are wide.",
        {"soft_routing": _normalised(_rms)},
        "SM-1",
    ),
    Mutant(
        "slots_mix_normalised_tokens",
        "Slots mix the normalised tokens.",
        {"moe_layer": _mixing(lambda x, axis: normalize_l2(x, axis, form="paper"))},
        "SM-3",
    ),
    Mutant(
        "norm_clamped_and_mixed",
        "Tokens are divided by max(norm, 1e-12), and slots mix these.",
        {"soft_routing": _normalised(_unit), "moe_layer": _mixing(_unit)},
        "SM-3",
        "bwconrad/soft-moe",
    ),
    Mutant(
        "rms_norm_and_mixed",
        "Tokens and slots are divided by their root mean square, and slots mix these tokens.",
        {"soft_routing": _normalised(_rms), "moe_layer": _mixing(_rms)},
        "SM-3",
        "lucidrains/soft-moe-pytorch",
    ),
    wrong(scale_without_normalisation, "soft_routing", ledger="SM-4"),
    wrong(scale_of_one, "soft_routing", ledger="SM-4"),
    wrong(never_normalised, "soft_routing"),
    wrong(always_normalised, "soft_routing"),
    wrong(slots_dealt_round_robin, "soft_routing", ledger="SM-2"),
    wrong(weights_in_bfloat16, "soft_routing", who="google-research/vmoe"),
    wrong(ablations_ignored, "soft_routing"),
    wrong(uniform_over_slots, "soft_routing"),
    wrong(norms_without_gradient, "soft_routing"),
)
"""The mutants of this module."""
