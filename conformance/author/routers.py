"""Factories and options that router cases share."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from moespec.conformance.author.definition import DRAWS, Definition, Draws, Noise, Routed, tensor
from moespec.conformance.author.inputs import experts, grid, prefixed
from moespec.conformance.author.inputs import tokens as drawn_tokens
from moespec.conformance.format import Stage, Tensor
from moespec.spec.routers import ROUTERS

__all__ = [
    *("CHANGED", "LOSSES", "NORMAL", "common", "evaluation", "kernel_case", "kernel_of", "logit_options"),
    *("dropless", "output_gradient", "replay", "router_case", "several_choices"),
]

T, E, D = 6, 3, 4
NORMAL = Noise("tokens experts", reach=2.0, step=0.125)
"""Gating noise."""
LOSSES: dict[str, Any] = {"importance_weight": 0.5, "load_weight": 0.25, "balance_weight": 0.125, "z_weight": 0.0625}
"""Weights for every loss of a router with gating noise."""
CHANGED: dict[str, Any] = {"balance_logits": "clean", "z_logits": "noisy"}
"""Options of two losses. Each option selects the logits, clean or noisy, that the loss does not use by default."""
FRACTIONS = "fractions_of_the_scope"
SCOPED: dict[str, Any] = {"balance_weight": 0.5, "balance_scope": "batch"}
"""Options of a balance loss over all groups."""
LAYER = ("tokens", "router/kernel", "experts/w1", "experts/b1", "experts/w2", "experts/b2")
"""A gradient case without noise differentiates the output of the layer with respect to these inputs."""


def kernel_of(key: str, width: int, experts: int, *, zero: bool = False, reach: float = 1.0) -> dict[str, Tensor]:
    """Return the kernel of a router: numbers drawn from a key, or zeros."""
    values = np.zeros((width, experts)) if zero else grid(key, (width, experts), reach=reach)
    return {"kernel": tensor(values, "width experts")}


def router_case(
    router: str,
    name: str,
    kind: str,
    purpose: str,
    *flags: str,
    params: Mapping[str, Tensor] | None = None,
    state: Mapping[str, Tensor] | None = None,
    inputs: Mapping[str, Tensor] | None = None,
    sizes: tuple[int, int, int] = (T, E, D),
    hidden: int = 3,
    zero: bool = False,
    train: bool | None = None,
    noise: Noise | None = None,
    groups: int = 2,
    draws: Draws = DRAWS,
    accept: Callable[[Any], bool] | None = None,
    of: str = "moe_layer/output",
    by: tuple[str, ...] = (),
    exact_ties: bool | None = None,
    also: tuple[Stage, ...] = (),
    losses: bool | None = None,
    **options: Any,
) -> Definition:
    """Return a case with the calls of a router, the complete router, and the layer around the router.

    params: router parameters (default: a kernel, which is 0 if `zero`).
    inputs: additional inputs. Tokens and noise are drawn unless `inputs` includes `tokens`.
    sizes: the number of tokens, the number of experts, and the width. hidden: the hidden width of the experts.
    train: by default, True if the case has noise. options: router options other than sizes.
    losses: whether a layer gradient includes the losses; by default, True if the case has noise.
    """
    t, e, d = sizes
    key = f"routers/{router}/{name}"
    params = kernel_of(f"{key}/kernel", d, e, zero=zero) if params is None else params
    tied = not any(value.array.any() for value in params.values())
    return Definition(
        ROUTERS[router].name,
        name,
        kind,
        purpose,
        {
            **(inputs or {}),
            **{f"router/{part}": value for part, value in params.items()},
            **{f"state/{part}": value for part, value in (state or {}).items()},
            **{f"experts/{part}": value for part, value in experts(key, e, d, hidden, d).items()},
        },
        flags=flags,
        of=of if kind == "gradient" else "",
        by=by,
        losses=kind == "gradient" and of == "moe_layer/output" and (bool(noise) if losses is None else losses),
        exact_ties=tied if exact_ties is None else exact_ties,
        routed=Routed(
            router,
            {"tokens": t, "experts": e, "width": d, **options},
            bool(noise) if train is None else train,
            "tokens" not in (inputs or {}),
            groups,
            noise,
            draws,
            accept,
            also=also,
        ),
    )


def kernel_case(
    router: str, name: str, kind: str, purpose: str, *flags: str, zero: bool = False, **fields: Any
) -> Definition:
    """Return a router case whose kernel is drawn from the name of the case."""
    params = kernel_of(f"routers/{router}/{name}", *fields["sizes"][:0:-1], zero=zero)
    return router_case(router, name, kind, purpose, *flags, params=params, **fields)


def common(router: str, **options: Any) -> Iterator[Definition]:
    """Yield the cases that are the same for all routers with gating noise and an expert capacity.

    options: additional router options for the case that uses all losses.
    """
    purpose = "Two groups, with so many slots that there is room for all that is requested."
    yield router_case(router, "values", "value", purpose, "generated_code", slots_per_expert=4)
    purpose = "Noise enters the logits, also at evaluation; selection, combine weights and losses see what they should."
    more: dict[str, Any] = {"noise": NORMAL, "train": False, "noise_multiplier": 2.0, "multiple_of": 3}
    more |= LOSSES | CHANGED | options
    yield router_case(router, "noise", "value", purpose, "noise_inside", "capacity_rounding", **more)
    purpose = "A router that starts at 0: every score is equal."
    yield router_case(router, "zero_kernel", "tie", purpose, "tie_order", zero=True, sizes=(8, 4, D))
    yield evaluation(router)
    yield logit_options(router)
    yield balance_scope(router)


def balance_scope(router: str, **fields: Any) -> Definition:
    """Return a case whose balance loss counts the choices of both groups."""
    purpose = "The fractions of the balance loss are those of both groups, its mean scores those of each."
    return router_case(router, "balance_scope", "value", purpose, FRACTIONS, **{**SCOPED, **fields})


def evaluation(router: str, **options: Any) -> Definition:
    """Return a case in which the evaluation capacity drops tokens. The training capacity would drop none.

    Before rounding, the capacity is an even integer plus one half. The training capacity is an explicit number of slots.
    """
    purpose = "The factor of evaluation, rounded to the nearest, comes before the factor and the slots of training."
    settings: dict[str, Any] = {"eval_capacity_factor": 1.25, "slots_per_expert": 5, "rounding": "round", **options}
    return router_case(router, "evaluation_factor", "overflow", purpose, "evaluation_capacity", train=False, **settings)


def output_gradient(case: Callable[..., Definition], *flags: str, **options: Any) -> Definition:
    """Return a gradient case without noise that differentiates only the output, so that adapters can also run the case."""
    purpose = "Without noise, of the output alone."
    return case("gradient_output", "gradient", purpose, "stop_gradient", *flags, by=LAYER, losses=False, **options)


def dropless(case: Callable[..., Definition], tied: Callable[..., Definition]) -> Iterator[Definition]:
    """Yield cases without a capacity, to test kernels that sort choices by expert.

    case: factory for a router whose bias sends all tokens to one expert and none to another. tied: factory for a router
    without a bias. The experts of the `tied` case return constants whose sum is exact in float32 in any order.
    """
    settings: dict[str, Any] = {"groups": 3, "choices": 3, "capacity_factor": math.inf}
    purpose = "Three choices and no capacity: one expert has all tokens, one has none."
    yield case("dropless", "value", purpose, "room_for_all", **settings)
    purpose = "Without a capacity, of the output alone; an expert without tokens has none."
    flags = ("room_for_all", "stop_gradient")
    yield case("gradient_dropless", "gradient", purpose, *flags, by=LAYER, losses=False, **settings)
    purpose = "Four experts return 256, 1/2, -256 and 1/4, with equal weights: a sum in bfloat16 loses the small ones."
    settings |= {"choices": 4, "zero": True, "sizes": (3, 8, 2)}
    definition = tied("dropless_sum", "tie", purpose, "low_precision", **settings)
    values = np.array([256.0, 0.5, -256.0, 0.25, 8.0, 16.0, 32.0, 64.0])[:, None] * [1.0, 2.0]
    constant = {"w2": tensor(np.zeros((8, 3, 2)), "experts hidden width"), "b2": tensor(values, "experts width")}
    inputs = {**definition.inputs, **prefixed(constant)}
    yield replace(definition, inputs=inputs, unrounded=("moe_layer/output",))


JITTER = Noise("tokens width", reach=1.0, step=0.125)
"""Jitter of the tokens."""


def logit_options(router: str, **options: Any) -> Definition:
    """Return a case with a bias and a cap of the logits. The only noise is token jitter."""
    purpose = "Logits with a bias and a cap, of tokens with jitter, which takes the place of other noise."
    key = f"routers/{router}/logit_options"
    params = {**kernel_of(f"{key}/kernel", D, E), "bias": tensor(grid(f"{key}/bias", (E,), reach=1.0), "experts")}
    settings: dict[str, Any] = {"bias": True, "jitter": 0.25, "logit_cap": 1.5, "z_weight": 0.0625, **options}
    if router not in ("gshard", "switch"):  # gshard and switch have no gating noise
        settings["noise_multiplier"] = 0.0
    by = ("router/kernel", "router/bias")
    return router_case(
        router, "logit_options", "gradient", purpose, "jitter_factor", params=params, noise=JITTER, by=by, **settings
    )


def several_choices(router: str, **options: Any) -> Definition:
    """Return a case with two choices per token, and with other implementations' rules for slots, weights and the balance loss."""
    purpose = "A token gets all its slots before the next one, and what it keeps is divided by the root of the sum of squares."
    settings: dict[str, Any] = {"normalize_selected": True, "normalize_when": "after", "normalize_norm": "euclidean"}
    settings |= {"slot_order": "token", "capacity_factor": 0.75, **options}
    if router != "gshard":
        settings |= {"choices": 2, "balance_counts": "all", "balance_weight": 0.5}
    return router_case(router, "several_choices", "overflow", purpose, "renormalised", "overflow_drop", **settings)


RECORDED = [[0, 2, 3], [1, 0, 2], [2, -1, 3], [-1, -1, -1], [1, 2, 0], [3, 1, 2]]
"""Recorded choices of six tokens, of four experts: token 2 makes two choices, and token 3 has no record."""


def replay(
    case: Callable[..., Definition],
    *flags: str,
    name: str = "replay",
    kind: str = "overflow",
    recorded: int = 1,
    groups: int = 2,
    **fields: Any,
) -> Definition:
    """Return a case with recorded choices, of which two slots per expert cannot hold all. case: factory for six tokens."""
    choices = np.array(RECORDED)[:, :recorded]
    inputs = {"choices": tensor(np.stack([choices, choices[::-1]][:groups]), "groups tokens choices")}
    inputs["tokens"] = drawn_tokens("replay/tokens", (groups, T, D))
    purpose = "Recorded choices, also of experts that the router would not choose; a choice not made, a token without a record."
    settings: dict[str, Any] = {"slots_per_expert": 2, "sizes": (T, 4, D), "groups": groups, "inputs": inputs, **fields}
    return case(name, kind, purpose, "replayed_choices", *flags, **settings)
