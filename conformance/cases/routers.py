"""Cases of the routers of the study but Soft MoE: step by step, the layer around it, its gradient; and what others share.

Tokens are drawn until the choices of the router are far from ties, group by group; the kernel stays.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from moespec.conformance.cases.definition import Definition, tensor
from moespec.conformance.cases.faults import (
    SMALL,
    array_faults,
    router_config,
    router_faults,
    router_inputs,
    size_faults,
)
from moespec.conformance.cases.inputs import experts
from moespec.conformance.cases.margins import Noise, clear_tokens
from moespec.conformance.draw import grid
from moespec.conformance.format import Tensor
from moespec.conformance.program import Config, Values
from moespec.conformance.programs import PROGRAMS
from moespec.conformance.reference import SPEC
from moespec.spec import ROUTERS

__all__ = ["cases"]

G, T, E, D = 2, 6, 3, 4
NORMAL = Noise("tokens experts", reach=2.0, step=0.125)

TOKEN_CHOICE = ("softmax_token_choice", "sinkhorn_token_choice")
EXPERT_CHOICE = ("softmax_expert_choice", "sinkhorn_expert_choice", "sparsity_constrained_expert_choice")


def cases() -> Iterator[Definition]:
    """All cases of this module."""
    for router in (*TOKEN_CHOICE, *EXPERT_CHOICE):
        yield from _common(router)
    for router in TOKEN_CHOICE:
        yield from _token_choice(router)
    for router in EXPERT_CHOICE:
        yield from _expert_choice(router)
    yield from _options()
    yield from _soft()
    yield from _faults()


def case(
    router: str,
    name: str,
    kind: str,
    purpose: str,
    flags: tuple[str, ...] = (),
    *,
    groups: int = 2,
    sizes: tuple[int, int, int] = (T, E, D),
    noise: bool = False,
    zero: bool = False,
    reach: float = 1.0,
    zeros: bool = False,
    of: str = "output",
    train: bool | None = None,
    steps: bool = True,
    **fields: Any,
) -> Definition:
    """A case of a router that selects; `fields` are those of `RouterConfig`; `of`: what a gradient is of.

    train: whether the router trains; if None, where there is noise. steps: whether each step of the composition is a
    stage, or the router as a whole alone.
    """
    t, e, d = sizes
    key = f"routers/{router}/{name}"
    config: dict[str, Any] = {"router": {"tokens": t, "experts": e, "width": d, **fields}}
    if train is not None:
        config["train"] = train
    kernel = tensor(np.zeros((d, e)) if zero else grid(f"{key}/kernel", (d, e), reach=reach), "width experts")
    accept = partial(_takes_zero, router, config) if zeros else lambda scores: True
    drawn = [
        clear_tokens(
            router, f"{key}/{g}", config, {"router/kernel": kernel}, noise=NORMAL if noise else None, accept=accept
        )
        for g in range(groups)
    ]
    inputs = {
        "tokens": tensor(np.stack([tokens for tokens, _ in drawn]), "groups tokens width"),
        "router/kernel": kernel,
    }
    if noise:
        inputs["noise"] = tensor(np.stack([n for _, n in drawn]), "groups tokens experts")
    inputs |= experts(key, e, d, 3, d)
    stages = [stage for stage in PROGRAMS[router] if stage != "priority" or "batch_priority" in fields]
    gradient = None
    if not steps:
        stages = ["route"]
    if kind == "gradient":
        wrt = [n for n in inputs if of == "output" or not n.startswith("experts/")]
        gradient, stages = (of, tuple(wrt)), ["route"]
    symmetric = zero or (e == 1 and not router.startswith("sinkhorn"))
    return Definition(router, name, kind, purpose, inputs, config, tuple(stages), flags, gradient, exact_ties=symmetric)


def _takes_zero(router: str, config: Config, values: Values) -> bool:
    """Whether some expert has fewer tokens with a positive score (tokens, experts) than slots."""
    capacity = ROUTERS[router].configure(**config["router"]).capacity()
    return bool(((values["scores"] > 0).sum(axis=0) < capacity).any())


def with_parameters(
    router: str,
    name: str,
    kind: str,
    purpose: str,
    *flags: str,
    parameters: Mapping[str, Tensor],
    noise: Noise | None = None,
    train: bool | None = None,
    sizes: tuple[int, int, int] = (T, E, D),
    steps: bool = False,
    **fields: Any,
) -> Definition:
    """A case of a router with given parameters; `fields` are those of `RouterConfig`.

    train: whether the router trains; if None, where there is noise. steps: whether each step of the composition is a
    stage, or the router as a whole alone.
    """
    t, e, d = sizes
    key = f"routers/{router}/{name}"
    sized = {"tokens": t, "experts": e, "width": d, **fields}
    config: dict[str, Any] = {"router": sized, "train": bool(noise) if train is None else train}
    given = {f"router/{parameter}": value for parameter, value in parameters.items()}
    drawn = [clear_tokens(router, f"{key}/{g}", config, given, noise=noise) for g in range(G)]
    inputs = {"tokens": tensor(np.stack([tokens for tokens, _ in drawn]), "groups tokens width"), **given}
    if noise:
        inputs["noise"] = tensor(np.stack([n for _, n in drawn]), f"groups {noise.axes}")
    inputs |= experts(key, e, d, 3, d)
    gradient = None
    if kind == "gradient":
        carries = [name for name in inputs if (router, name) != ("gshard", "noise")]  # which only decides
        gradient = ("output", tuple(carries))
    stages = tuple(stage for stage in PROGRAMS[router] if stage != "second" or noise) if steps else ("route",)
    tied = not any(value.array.any() for value in given.values())
    return Definition(router, name, kind, purpose, inputs, config, stages, flags, gradient, exact_ties=tied)


def _common(router: str) -> Iterator[Definition]:
    yield case(
        router,
        "values",
        "value",
        "Two groups with room for all that is asked.",
        ("generated_code",),
        capacity_factor=2.0,
    )
    yield case(
        router,
        "noise",
        "value",
        "Noise enters the logits; selection and combine weights see it.",
        ("noise_inside",),
        noise=True,
    )
    yield case(
        router,
        "zero_kernel",
        "tie",
        "A router that starts at 0: every score is equal.",
        ("tie_order",),
        zero=True,
        sizes=(8, 4, D),
    )
    if router not in ("sinkhorn_token_choice", "sparsity_constrained_expert_choice"):
        yield case(
            router,
            "multiple",
            "value",
            "Capacity rounded up to a multiple of 2.",
            ("capacity_rounding",),
            multiple_of=2,
            capacity_factor=1.25,
        )
    if router == "softmax_token_choice":
        yield case(router, "one_expert", "degenerate", "One expert.", ("degenerate_size",), sizes=(T, 1, D))
    if router.startswith("softmax"):
        yield case(router, "one_token", "degenerate", "One token.", ("degenerate_size",), sizes=(1, E, D))
    if router.endswith("token_choice"):
        yield case(
            router,
            "gradient",
            "gradient",
            "By tokens, kernel and expert weights; the selection carries none.",
            ("stop_gradient",),
        )
    yield case(
        router,
        "gradient_noise",
        "gradient",
        "By the noise, too.",
        ("noise_inside", "stop_gradient"),
        noise=True,
        noise_multiplier=2.0,
    )


def _token_choice(router: str) -> Iterator[Definition]:
    first = ("first_choices_first", "overflow_drop")
    yield case(
        router, "two_choices", "overflow", "Two choices, half of the room.", first, choices=2, capacity_factor=0.5
    )
    if router == "softmax_token_choice":
        yield case(router, "factor_one", "value", "As many slots as choices.", ("overflow_drop",))
        yield case(
            router,
            "priority_max",
            "overflow",
            "Best tokens first.",
            ("priority_order",),
            batch_priority="max",
            capacity_factor=0.5,
        )
        yield case(
            router,
            "priority_sum",
            "overflow",
            "By the sum of two choices.",
            ("priority_order",),
            batch_priority="sum",
            choices=2,
            capacity_factor=0.5,
        )
        yield case(
            router,
            "losses",
            "value",
            "All auxiliary losses, weighted, with noise, over two groups.",
            ("noise_inside",),
            noise=True,
            choices=2,
            importance_weight=0.5,
            load_weight=0.25,
            balance_weight=0.125,
            z_weight=0.0625,
        )
        yield case(
            router,
            "gradient_load",
            "gradient",
            "Of the load loss, by tokens, kernel and noise.",
            ("noise_inside",),
            noise=True,
            of="losses/load",
            choices=2,
            load_weight=0.5,
        )
        yield case(
            router,
            "gradient_two",
            "gradient",
            "Two choices with drops.",
            ("stop_gradient",),
            choices=2,
            capacity_factor=0.5,
        )
    else:
        yield from _plan(router)


def _plan(router: str) -> Iterator[Definition]:
    """Combine weights by the plan, and from the logits without noise."""
    flags = ("combine_with_plan",)
    clean: dict[str, Any] = {"noise": True, "combine_from_clean_logits": True}
    purpose = "Combine weights from the logits without noise."
    yield case(router, "clean_combine", "value", purpose, ("noise_inside",), **clean)
    yield case(router, "gradient_clean", "gradient", "The noise moves no weight.", ("noise_inside",), **clean)
    yield case(router, "combine_plan", "value", "Ablation: combine with the plan.", flags, combine_with="plan")
    yield case(
        router, "gradient_plan", "gradient", "Ablation: through the iterations of the plan.", flags,
        combine_with="plan", sinkhorn_iterations=5,
    )  # fmt: skip


def _expert_choice(router: str) -> Iterator[Definition]:
    if not router.startswith("sinkhorn"):
        purpose = "Half as many slots as tokens."
        yield case(router, "half", "value", purpose, ("uncovered_token",), capacity_factor=0.5)
    if router.startswith("sparsity"):
        yield case(
            router,
            "zero_plan",
            "value",
            "A peaked softmax leaves zeros in the plan, whose slots are filled.",
            ("zero_score_slots",),
            capacity_factor=2.0,
            reach=6.0,
            zeros=True,
        )
        yield case(
            router,
            "zero_plan_dropped",
            "value",
            "The same slots left empty.",
            ("zero_score_slots", "empty_slot"),
            capacity_factor=2.0,
            reach=6.0,
            zeros=True,
            drop_zero_plan=True,
        )
        yield case(router, "few_steps", "value", "Five steps of the solver.", ("solver_steps",), transport_steps=5)
    if router.startswith("sinkhorn"):
        purpose = "Ablation: combine with the plan."
        yield case(router, "combine_plan", "value", purpose, ("combine_with_plan",), combine_with="plan")


def _options() -> Iterator[Definition]:
    """Capacities by number and at evaluation, and weights divided by their sum: the routers as a whole."""
    numbered: dict[str, Any] = {"slots_per_expert": 3, "capacity_factor": 0.5, "steps": False}
    evaluated: dict[str, Any] = {"capacity_factor": 1.5, "eval_capacity_factor": 0.5, "steps": False}
    for router in ("softmax_token_choice", "softmax_expert_choice"):
        purpose = "Three slots for each expert, whatever the factor."
        yield case(router, "slots_per_expert", "value", purpose, ("capacity_rounding",), **numbered)
        purpose = "The factor of evaluation, which leaves less room."
        yield case(router, "evaluation", "value", purpose, ("capacity_rounding",), train=False, **evaluated)
        purpose = "In training the factor of evaluation is not used."
        yield case(router, "training", "value", purpose, ("capacity_rounding",), train=True, **evaluated)
    shared: dict[str, Any] = {"normalize_selected": True, "choices": 2, "capacity_factor": 0.75, "steps": False}
    for router in TOKEN_CHOICE:
        purpose = "The weights of a token are divided by the sum of its choices, before any is dropped."
        yield case(router, "normalize_selected", "overflow", purpose, ("renormalised", "overflow_drop"), **shared)
    purpose = "Through the sum of the chosen, too."
    yield case("softmax_token_choice", "gradient_normalize_selected", "gradient", purpose, ("renormalised",), **shared)


def _soft() -> Iterator[Definition]:
    def soft(name: str, kind: str, purpose: str, flags: tuple[str, ...] = (), *, groups: int = 2,
             sizes: tuple[int, int, int] = (T, E, D), scale: float = 1.5, **fields: Any) -> Definition:  # fmt: skip
        t, e, d = sizes
        key = f"routers/soft_moe/{name}"
        config = {"router": {"tokens": t, "experts": e, "width": d, **fields}}
        capacity = SPEC.ROUTERS["soft_moe"].configure(**config["router"]).capacity()
        inputs = {
            "tokens": tensor(grid(f"{key}/tokens", (groups, t, d)), "groups tokens width"),
            "router/slots": tensor(grid(f"{key}/slots", (d, e, capacity)), "width experts capacity"),
            "router/scale": tensor(np.float32(scale), ""),
            **experts(key, e, d, 3, d),
        }
        gradient = ("output", tuple(inputs)) if kind == "gradient" else None
        stages = ("route",) if gradient else ()
        return Definition("soft_moe", name, kind, purpose, inputs, config, stages, flags, gradient)

    yield soft("values", "value", "Two images.", ("joint_softmax", "generated_code"))
    yield soft(
        "rounded",
        "value",
        "Slots are rounded to the nearest: 7 tokens, 3 experts.",
        ("capacity_rounding",),
        sizes=(7, E, D),
    )
    yield soft("rsqrt", "value", "The norm of the public code.", ("norm_form",), norm_form="rsqrt")
    for first, second in (("soft", "uniform"), ("identity", "identity")):
        yield soft(
            f"{first}_{second}",
            "value",
            f"Ablation: dispatch {first}, combine {second}.",
            ("ablation",),
            dispatch=first,
            combine=second,
        )
    yield soft("scale_zero", "tie", "A scale of 0: every slot sees the mean token.", scale=0.0)
    yield soft("one_token", "degenerate", "One token.", ("degenerate_size",), sizes=(1, 1, D))
    yield soft("gradient", "gradient", "By tokens, slots, scale and expert weights.")


def _faults() -> Iterator[Definition]:
    given, many = router_inputs(), SMALL.experts + 1
    options: dict[str, Any] = {"choices": (1, many), "batch_priority": ("none", "mean"), "capacity_factor": (1.0, 0.0)}
    yield from router_faults("softmax_token_choice", given, **options)
    yield from router_faults("sinkhorn_token_choice", given, choices=(1, many))
    yield from router_faults("softmax_expert_choice", given, rounding=("round", "floor"), capacity_factor=(1.0, 0.0))
    for router in ("sinkhorn_token_choice", "sinkhorn_expert_choice"):
        yield from router_faults(router, given, combine_with=("softmax", "scores"), sinkhorn_iterations=(2, 0))
    transport = "sparsity_constrained_expert_choice"
    yield from router_faults(transport, given, combine_with=("softmax", "plan"), transport_steps=(2, 0))

    first, config = "softmax_token_choice", {"router": router_config()}
    yield from array_faults(first, "route", "tokens", given, config, "tokens_")
    yield from size_faults(first, "route", given, config, tokens=1, router__kernel=1)
    yield from size_faults(first, "route", given, config, "width_", router__kernel=0)

    slots = tensor(grid("negative/slots", (SMALL.width, SMALL.experts, 2)), "width experts capacity")
    given = router_inputs(slots=slots, scale=tensor(np.float32(1), ""))
    forms: dict[str, Any] = {"norm_form": ("paper", "l1"), "combine": ("soft", "hard")}
    yield from router_faults("soft_moe", given, **forms, eval_capacity_factor=(None, 2.0))
    yield from size_faults("soft_moe", "route", given, config, router__slots=0)
