"""Cases of Switch, S-BASE and GShard, and of what they are made of: jitter, kept choices, gates of the selected."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from moespec.conformance.cases.definition import Definition, both, groups_tokens, tensor
from moespec.conformance.cases.faults import (
    SHAPE,
    SMALL,
    array_faults,
    fault,
    option,
    router_config,
    router_faults,
    router_inputs,
    size_faults,
)
from moespec.conformance.cases.inputs import distinct, kernel, logits, utilities
from moespec.conformance.cases.margins import Noise
from moespec.conformance.cases.routers import with_parameters
from moespec.conformance.draw import grid
from moespec.conformance.format import Tensor

__all__ = ["cases"]

G, T, E, D = 2, 5, 3, 3


def cases() -> Iterator[Definition]:
    """All cases of this module."""
    yield from _router_jitter()
    yield from _switch()
    yield from _s_base()
    yield from _kept_choices()
    yield from _normalize_selected()
    yield from _normalize_selected_faults()
    yield from _gshard()
    yield from _gshard_faults()


def _router_jitter() -> Iterator[Definition]:
    name, axes = "router_jitter", "groups tokens width"

    def case(
        case: str, kind: str, purpose: str, *, noise: bool = True, shape: tuple[int, ...] = (G, T, D), **config: Any
    ) -> Definition:
        inputs = {"tokens": tensor(grid(f"{name}/{case}", shape), axes)}
        if noise:
            inputs["noise"] = tensor(grid(f"{name}/{case}/noise", shape, reach=1.0, step=0.0625), axes)
        gradient = ("jittered", tuple(inputs)) if kind == "gradient" else None
        return Definition(name, case, kind, purpose, inputs, config, flags=("jitter_factor",), gradient=gradient)

    yield case("values", "value", "The default, one per cent.", epsilon=0.01)
    yield case("large", "value", "A quarter.", epsilon=0.25)
    yield case("zero", "degenerate", "An epsilon of 0 changes nothing.", epsilon=0.0)
    yield case("absent", "degenerate", "Without noise nothing changes.", noise=False, epsilon=0.01)
    yield case("one_token", "degenerate", "One token.", shape=(1, 1, D), epsilon=0.5)
    yield case("gradient", "gradient", "By tokens and noise.", epsilon=0.25)

    shape = (SMALL.groups, SMALL.tokens, SMALL.width)
    given = {part: tensor(grid(f"{name}/negative/{part}", shape, reach=1.0), axes) for part in ("tokens", "noise")}
    config = {"epsilon": 0.01}
    for part in given:
        yield from array_faults(name, "jitter", part, given, config, "" if part == "tokens" else f"{part}_")
    fewer = {"noise": tensor(given["noise"].array[:, 1:], axes)}
    yield fault(name, "jitter", "noise_shape", "ShapeError", "noise", given, config, wrong_inputs=fewer)
    yield option(name, "jitter", "epsilon", "epsilon", given, config, epsilon=-0.5)


def with_kernel(
    name: str,
    *about: str,
    sizes: tuple[int, int, int] = (T, E, D),
    zero: bool = False,
    **options: Any,
) -> Definition:
    """A case of a router whose parameters are a kernel; `about` are name, kind, purpose and flags. zero: it is 0."""
    _, experts, width = sizes
    weights = kernel(f"routers/{name}/{about[0]}", width, experts)
    if zero:
        weights = tensor(np.zeros((width, experts)), "width experts")
    return with_parameters(name, *about, parameters={"kernel": weights}, sizes=sizes, **options)


def _switch() -> Iterator[Definition]:
    name, uniform = "switch", Noise("tokens width", reach=1.0, step=0.125)

    def case(*about: str, noisy: bool = False, **options: Any) -> Definition:
        return with_kernel(name, *about, noise=uniform if noisy else None, **options)

    yield case("values", "value", "Evaluation: the tokens as they are.", "generated_code")
    yield case(
        "jitter", "value", "Training: router and losses see jittered tokens.", "jitter_factor", noisy=True, steps=True
    )
    yield case("large_jitter", "value", "A large jitter.", "jitter_factor", noisy=True, jitter=0.5, z_weight=0.5)
    yield case(
        "factor_one", "overflow", "Fewer slots: tokens are dropped.", "overflow_drop", steps=True, capacity_factor=0.5
    )
    yield case("zero_kernel", "tie", "Every score is equal.", "tie_order", zero=True, steps=True, sizes=(6, 4, D))
    yield case("one_expert", "degenerate", "One expert.", "degenerate_size", sizes=(T, 1, D))
    yield case("one_token", "degenerate", "One token.", "degenerate_size", sizes=(1, E, D))
    yield case(
        "gradient", "gradient", "By tokens, kernel, noise and experts.", "stop_gradient", noisy=True, jitter=0.25
    )
    yield from router_faults(name, router_inputs(), choices=(1, 2), slots_per_expert=(2, 0))


def _s_base() -> Iterator[Definition]:
    name = "s_base"

    def case(*about: str, train: bool = True, **options: Any) -> Definition:
        return with_kernel(name, *about, train=train, **options)

    plan = "plan_in_training"
    yield case(
        "training", "value", "The plan chooses; there is room for every token.", plan, "room_for_all", steps=True
    )
    yield case(
        "evaluation", "value", "The softmax chooses.", plan, "room_for_all", "generated_code", train=False, steps=True
    )
    yield case("sigmoid", "value", "The gate is a sigmoid.", "combine_scores", combine_with="sigmoid")
    yield case(
        "sigmoid_evaluation", "value", "At evaluation, too.", "combine_scores", train=False, combine_with="sigmoid"
    )
    yield case("few_iterations", "value", "One round of the plan.", "column_update_first", sinkhorn_iterations=1)
    yield case("factor", "overflow", "A capacity, with drops.", "overflow_drop", capacity_factor=0.5)
    yield case(
        "zero_kernel", "tie", "Every score is equal.", "tie_order", train=False, zero=True, steps=True, sizes=(6, 4, D)
    )
    yield case("one_expert", "degenerate", "One expert.", "degenerate_size", train=False, sizes=(T, 1, D))
    yield case("one_token", "degenerate", "One token.", "degenerate_size", train=False, sizes=(1, E, D))
    yield case("gradient", "gradient", "Through the gate alone.", "stop_gradient")
    yield case("gradient_sigmoid", "gradient", "Through the sigmoid.", "stop_gradient", combine_with="sigmoid")
    yield from router_faults(name, router_inputs(), choices=(1, 2), combine_with=("sigmoid", "plan"))
    given = {"logits": logits(f"{name}/negative", SHAPE)}
    for prefix, gate in (("", "softmax"), ("sigmoid_", "sigmoid")):
        config = {"router": router_config(combine_with=gate), "train": True}
        yield from array_faults(name, "gates", "logits", given, config, prefix)


def _kept_choices() -> Iterator[Definition]:
    """Token Choice where some choices are not made."""

    def case(case: str, kind: str, purpose: str, keep: Any, **config: Any) -> Definition:
        inputs = {
            "scores": utilities(f"keep/{case}", (G, T, E)),
            "keep": tensor(np.asarray(keep), "groups tokens choices"),
        }
        return Definition("token_choice", case, kind, purpose, inputs, config, flags=("choice_not_made",))

    some = (grid("keep/some", (G, T, 2)) > 0).astype(int)
    yield case("keep", "overflow", "A choice that is not made takes no slot.", some, choices=2, capacity=2)
    none = np.zeros((G, T, 1), int)
    yield case("keep_none", "degenerate", "No choice is made.", none, choices=1, capacity=2)


def _normalize_selected() -> Iterator[Definition]:
    name = "normalize_selected"

    def case(
        case: str, kind: str, purpose: str, scores: Tensor, weights: Tensor | None = None, choices: int = 2
    ) -> Definition:
        inputs = {"scores": scores} | ({} if weights is None else {"combine_scores": weights})
        gradient = ("normalized", (list(inputs)[-1],)) if kind == "gradient" else None
        flags = ("renormalised",)
        return Definition(name, case, kind, purpose, inputs, {"choices": choices}, flags=flags, gradient=gradient)

    yield case("values", "value", "By the sum of the two chosen.", utilities(f"{name}/a"))
    other = utilities(f"{name}/b/weights", (G, 8, 5))
    yield case(
        "combine_scores", "value", "Chosen by one, divided by the other.", logits(f"{name}/b", (G, 8, 5)), other, 3
    )
    tied = both(np.array([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.25, 0.25, 0.5], [0.375, 0.375, 0.25]]))
    spread = both(np.array([[0.5, 0.125, 0.375], [0.25, 0.5, 0.75], [0.5, 0.25, 1.0], [1.0, 0.5, 0.25]]))
    yield case("tied", "tie", "Among equal scores the lower expert counts.", tied, spread)
    yield case("one_choice", "degenerate", "The chosen gets 1.", utilities(f"{name}/c"), choices=1)
    yield case(
        "all_choices",
        "degenerate",
        "All: nothing changes for a softmax.",
        logits(f"{name}/d"),
        utilities(f"{name}/d/w"),
        E,
    )
    untied = groups_tokens(logits(f"{name}/e").array + np.arange(E) / 64)
    yield case("gradient", "gradient", "By the combine scores.", untied, utilities(f"{name}/e/weights"))
    apart = distinct(f"{name}/f", (G, T, E))
    yield case("gradient_scores", "gradient", "By the scores where they are the weights, too.", apart)


def _normalize_selected_faults() -> Iterator[Definition]:
    name, stage, config = "normalize_selected", "normalize", {"choices": 2}
    parts = (("scores", ""), ("combine_scores", "/weights"))
    given = {part: utilities(f"{name}/negative{key}", SHAPE) for part, key in parts}
    for part in given:
        yield from array_faults(name, stage, part, given, config, "" if part == "scores" else f"{part}_")
    fewer = {"combine_scores": groups_tokens(given["combine_scores"].array[:, 1:])}
    yield fault(name, stage, "shape", "ShapeError", "combine_scores", given, config, wrong_inputs=fewer)
    yield fault(
        name, stage, "no_mass", "ContractError", "combine_scores", given, config,
        wrong_inputs={"combine_scores": groups_tokens(np.zeros(SHAPE))},
        purpose="The chosen experts of a token have the sum 0.",
    )  # fmt: skip
    for case, value in (("no_choice", 0), ("many_choices", SMALL.experts + 1)):
        yield option(name, stage, case, "choices", given, config, choices=value)


def _gshard() -> Iterator[Definition]:
    name, uniform = "gshard", Noise("tokens", reach=0.5, step=0.0625, centre=0.5)

    def case(*about: str, noisy: bool = True, **options: Any) -> Definition:
        return with_kernel(name, *about, noise=uniform if noisy else None, **options)

    second = "choice_not_made"
    yield case(
        "training",
        "value",
        "Second experts are kept at random.",
        second,
        "generated_code",
        steps=True,
        capacity_factor=2.0,
    )
    yield case("evaluation", "value", "Second experts are all kept.", second, noisy=False)
    yield case(
        "five_experts",
        "value",
        "Five experts, other losses.",
        second,
        sizes=(6, 5, D),
        importance_weight=0.5,
        z_weight=0.25,
    )
    yield case(
        "factor",
        "overflow",
        "Drops after the gates are divided.",
        "overflow_drop",
        "renormalised",
        steps=True,
        capacity_factor=0.5,
    )
    yield case("not_normalised", "value", "Gates as they are.", "renormalised", normalize_selected=False)
    yield case("zero_kernel", "tie", "Every score is equal.", "tie_order", noisy=False, zero=True, sizes=(6, 4, D))
    yield case("two_experts", "degenerate", "Two experts.", "degenerate_size", sizes=(T, 2, D))
    yield case("gradient", "gradient", "By tokens, kernel and experts.", "stop_gradient")


def _gshard_faults() -> Iterator[Definition]:
    name, (g, t, _, _) = "gshard", SMALL
    yield from router_faults(name, router_inputs(), choices=(2, 1))
    noise = tensor(grid("gshard/negative/noise", (g, t), reach=0.5, centre=0.5), "groups tokens")
    given = {"normalized": utilities("gshard/negative", SHAPE), "noise": noise}
    config: dict[str, Any] = {"router": router_config(), "train": True}
    yield from size_faults(name, "second", given, config, noise=1)
    yield from array_faults(name, "second", "noise", given, config, "noise_")
    yield from array_faults(name, "second", "normalized", given, config, "gates_", named="gates")
    yield fault(
        name, "second", "one_expert", "ConfigError", "choices", given, config,
        wrong_inputs={"normalized": groups_tokens(np.ones((g, t, 1)))}, purpose="There is no second expert.",
    )  # fmt: skip
