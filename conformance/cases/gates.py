"""Cases of noisy top-k gating and of the routers that choose by other gates than the softmax of the study."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from moespec.conformance.cases.affinities import logits, utilities
from moespec.conformance.cases.definition import Definition, both, groups_tokens, tensor
from moespec.conformance.cases.layers import experts
from moespec.conformance.cases.negatives import array_faults, fault, sizes
from moespec.conformance.draw import grid
from moespec.conformance.format import Tensor
from moespec.conformance.program import Values
from moespec.conformance.programs import PROGRAMS
from moespec.conformance.reference import SPEC

__all__ = ["cases"]

G, T, E, D = 2, 6, 3, 4
TRIES = 150
ENOUGH = 0.12
"""Neighbours that differ by 12 % of their sum stay apart in bfloat16 in most cases."""

TIED = np.array(
    [[0.5, 0.5, 0.5], [-1.0, 0.25, 0.25], [0.25, -1.0, 0.25], [0.0, -0.0, -2.0], [2.0, 2.0, -1.0], [-3.0, -3.0, -3.0]]
)


def cases() -> Iterator[Definition]:
    """All cases of this module."""
    yield from _noisy_top_k_affinity()
    yield from _noisy_top_k_load_loss()
    yield from _noisy_top_k()
    yield from _router_jitter()
    yield from _switch()
    yield from _s_base()
    yield from _kept_choices()
    yield from _normalize_selected()
    yield from _gshard()


def _noisy_top_k_affinity() -> Iterator[Definition]:
    name = "noisy_top_k_affinity"

    def noisy(
        case: str,
        kind: str,
        purpose: str,
        *flags: str,
        noise: bool = True,
        reach: float = 2.0,
        step: float = 0.25,
        **config: Any,
    ) -> Definition:
        inputs = {
            "logits": logits(f"{name}/{case}", reach=2.0, step=0.25),
            "noise_logits": logits(f"{name}/{case}/scale", reach=reach, step=step),
        }
        if noise:
            draw = logits(f"{name}/{case}/noise", reach=2.0, step=0.25).array
            inputs["noise"] = groups_tokens(draw + 0.125)  # never 0, so that no noisy logits are equal
        gradient = ("noisy_logits", tuple(inputs)) if kind == "gradient" else None
        stages = ("noisy",) if gradient or not config else ("noisy", "gates")
        return Definition(name, case, kind, purpose, inputs, config, stages, flags, gradient)

    def gates(case: str, kind: str, purpose: str, values: Tensor, *flags: str, choices: int = 2) -> Definition:
        gradient = ("gates", ("noisy_logits",)) if kind == "gradient" else None
        config = {"choices": choices}
        return Definition(name, case, kind, purpose, {"noisy_logits": values}, config, ("gates",), flags, gradient)

    scale, order = "learned_noise", "softmax_of_choices"
    yield noisy("noise", "value", "The scale of the noise is the softplus of the noise logits.", scale)
    yield noisy("both", "value", "Noise, then two choices.", scale, order, choices=2)
    yield noisy(
        "large_scale",
        "value",
        "Noise logits whose exponential overflows float32, and some whose softplus is nearly 0.",
        scale,
        "large_logits",
        reach=200.0,
        step=4.0,
    )
    yield noisy("absent", "degenerate", "Without noise the logits are unchanged.", scale, noise=False)
    yield noisy("gradient_noise", "gradient", "By the logits, the noise logits and the noise.", scale)
    yield gates("values", "value", "Two choices of three.", logits(f"{name}/a"), order)
    yield gates("three", "value", "Three choices of five.", logits(f"{name}/b", (G, 8, 5)), order, choices=3)
    yield gates(
        "large",
        "value",
        "Logits whose exponential overflows float32.",
        logits(f"{name}/c", reach=240.0, step=4.0),
        "large_logits",
    )
    yield gates("tied", "tie", "Among equal logits the lower expert is chosen.", both(TIED), "tie_order")
    near = np.full((G, T, E), 0.5) + (grid(f"{name}/d", (G, T, E), reach=2.0, step=1.0) / 256)
    yield gates("neighbours", "near_tie", "Logits that are neighbours in bfloat16.", groups_tokens(near))
    yield gates("one_choice", "degenerate", "One choice has the gate 1.", logits(f"{name}/e"), order, choices=1)
    yield gates(
        "all_choices", "degenerate", "All are chosen: the softmax.", logits(f"{name}/f"), "degenerate_size", choices=E
    )
    yield gates("one_expert", "degenerate", "One expert.", logits(f"{name}/g", (G, T, 1)), "degenerate_size", choices=1)
    untied = groups_tokens(logits(f"{name}/h", reach=1.0).array + np.arange(E) / 64)
    yield gates("gradient", "gradient", "By the noisy logits.", untied, order)

    good, config = {"noisy_logits": logits(f"{name}/negative")}, {"choices": 2}
    yield from array_faults(name, "gates", "noisy_logits", good, config)
    for case, wrong in (("no_choice", 0), ("many_choices", E + 1)):
        yield fault(name, "gates", case, "ConfigError", "choices", good, config, wrong_config={"choices": wrong})
    parts = {part: logits(f"{name}/negative/{part}") for part in ("logits", "noise_logits", "noise")}
    for part in ("noise_logits", "noise"):
        yield from array_faults(name, "noisy", part, parts, {}, f"{part}_")
        fewer = {part: logits(f"{name}/negative/{part}/few", (G, T - 1, E))}
        yield fault(name, "noisy", f"{part}_shape", "ShapeError", part, parts, {}, wrong_inputs=fewer)


def _noisy_top_k_load_loss() -> Iterator[Definition]:
    name = "noisy_top_k_load_loss"

    def inputs(key: str, shape: tuple[int, ...] = (G, T, E), reach: float = 2.0) -> dict[str, Tensor]:
        clean = logits(f"{name}/{key}", shape, reach=1.0)
        noise = logits(f"{name}/{key}/noise", shape, 0.5, 0.0625).array + np.arange(shape[2]) / 64  # no ties in a row
        scale = logits(f"{name}/{key}/scale", shape, reach=reach, step=0.25)
        return {"logits": clean, "noise_logits": scale, "noisy_logits": groups_tokens(clean.array + noise)}

    def loss(
        case: str, kind: str, purpose: str, given: Mapping[str, Tensor], *flags: str, choices: int = 1
    ) -> Definition:
        gradient = ("loss", tuple(given)) if kind == "gradient" else None
        return Definition(name, case, kind, purpose, given, {"choices": choices}, flags=flags, gradient=gradient)

    other = "threshold_excludes_self"
    yield loss("one_choice", "value", "The largest noisy logit of the others.", inputs("a"), other)
    yield loss("two_choices", "value", "The second largest of the others.", inputs("b"), other, choices=2)
    yield loss("three_choices", "value", "Three of five.", inputs("c", (G, 8, 5)), other, choices=3)
    yield loss("wide", "value", "Large noise logits.", inputs("d", reach=40.0), "learned_noise", "large_logits")
    level = dict.fromkeys(("logits", "noise_logits", "noisy_logits"), groups_tokens(np.zeros((G, 8, 4))))
    yield loss("equal", "tie", "Equal logits: every expert is chosen with probability one half.", level, other)
    tied = {**inputs("e"), "noisy_logits": both(TIED)}
    yield loss("tied", "tie", "Equal noisy logits at the threshold.", tied, other)
    yield loss("one_token", "degenerate", "One token.", inputs("f", (1, 1, E)), "degenerate_size")
    yield loss("gradient", "gradient", "By all logits, through the threshold too.", inputs("g"), other, choices=2)

    good, config = inputs("negative"), {"choices": 1}
    for part in good:
        yield from array_faults(name, "loss", part, good, config, "" if part == "logits" else f"{part}_")
    for case, wrong in (("no_choice", 0), ("all_choices", E)):
        yield fault(name, "loss", case, "ConfigError", "choices", good, config, wrong_config={"choices": wrong})


def router_case(
    router: str,
    name: str,
    kind: str,
    purpose: str,
    *flags: str,
    parameters: Mapping[str, Tensor],
    noise: tuple[str, float, float] | None = None,
    train: bool | None = None,
    sizes: tuple[int, int, int] = (T, E, D),
    stages: tuple[str, ...] = (),
    **fields: Any,
) -> Definition:
    """A case of a router; `fields` are those of `RouterConfig`, `parameters` those of the router.

    noise: its axes, its reach and its centre. train: whether the router trains; if None, where there is noise. Tokens are drawn
    until the choices are far from ties, group by group.
    """
    t, e, d = sizes
    key = f"routers/{router}/{name}"
    sized = {"tokens": t, "experts": e, "width": d, **fields}
    config: dict[str, Any] = {"router": sized, "train": bool(noise) if train is None else train}
    given = {f"router/{parameter}": value for parameter, value in parameters.items()}
    drawn = [_tokens(router, f"{key}/{g}", config, given, noise) for g in range(G)]
    inputs = {"tokens": tensor(np.stack([tokens for tokens, _ in drawn]), "groups tokens width"), **given}
    if noise:
        inputs["noise"] = tensor(np.stack([n for _, n in drawn]), f"groups {noise[0]}")
    inputs |= experts(key, e, d, 3, d)
    gradient = None
    if kind == "gradient":
        carries = [name for name in inputs if (router, name) != ("gshard", "noise")]  # which only decides
        gradient, stages = ("output", tuple(carries)), ("route",)
    tied = not any(value.array.any() for value in given.values())
    return Definition(router, name, kind, purpose, inputs, config, stages, flags, gradient, exact_ties=tied)


def _tokens(
    router: str,
    key: str,
    config: Mapping[str, Any],
    given: Mapping[str, Tensor],
    noise: tuple[str, float, float] | None,
) -> tuple[Any, Any]:
    """Tokens and noise of one group, with the largest margin of some draws, or the first that is large enough."""
    choice = PROGRAMS[router]["route"].choice
    if choice is None or isinstance(choice.scores, str):
        raise ValueError(f"{router} selects nothing")
    sizes = config["router"]
    best = -1.0
    found: tuple[Any, Any] = (None, None)
    for attempt in range(TRIES if any(value.array.any() for value in given.values()) else 1):
        tokens = grid(f"{key}/{attempt}", (sizes["tokens"], sizes["width"]), step=0.25)
        values: Values = {"tokens": tokens.astype(np.float64)}
        values |= {name: value.array.astype(np.float64) for name, value in given.items()}
        drawn: Any = None
        if noise:
            shape = tuple(sizes[axis] for axis in noise[0].split())
            drawn = grid(f"{key}/{attempt}/noise", shape, reach=noise[1], step=noise[1] / 8, centre=noise[2])
            values["noise"] = drawn.astype(np.float64)
        scores = choice.scores(SPEC, config, values)
        margin = choice.margin(config, scores, {name: np.abs(value) for name, value in scores.items()})
        if margin > best:
            best, found = margin, (tokens, drawn)
        if margin >= ENOUGH:
            break
    return found


def router_faults(router: str, parameters: Mapping[str, Tensor], **options: tuple[Any, Any]) -> Iterator[Definition]:
    """Faults in the configuration of a router: the right and the wrong value of each option."""
    inputs = {
        "tokens": tensor(grid("negative/router", (G, T, D)), "groups tokens width"),
        **{f"router/{name}": value for name, value in parameters.items()},
        **experts("negative/experts"),
    }
    for field, (right, wrong) in options.items():
        sizes = {"tokens": T, "experts": E, "width": D}
        good = {"router": {**sizes, field: right}, "train": False}
        bad = {"router": {**sizes, field: wrong}}
        argument = "factor" if field == "capacity_factor" else field
        yield fault(router, "route", field, "ConfigError", argument, inputs, good, wrong_config=bad)


def kernel(key: str, width: int = D, count: int = E, reach: float = 1.0) -> Tensor:
    """A kernel for router logits."""
    return tensor(grid(key, (width, count), reach=reach), "width experts")


def _noisy_top_k() -> Iterator[Definition]:
    name, normal = "noisy_top_k", ("tokens experts", 2.0, 0.0)

    def case(
        case: str,
        kind: str,
        purpose: str,
        *flags: str,
        noisy: bool = True,
        sizes: Any = (T, E, D),
        zero: bool = False,
        **fields: Any,
    ) -> Definition:
        kernels = {
            part: kernel(f"routers/{name}/{case}/{part}", sizes[2], sizes[1]) for part in ("kernel", "noise_kernel")
        }
        if zero:
            kernels = {part: tensor(np.zeros((sizes[2], sizes[1])), "width experts") for part in kernels}
        noise = normal if noisy else None
        return router_case(name, case, kind, purpose, *flags, parameters=kernels, noise=noise, sizes=sizes, **fields)

    room = "room_for_all"
    yield case("noise", "value", "Training, with both losses.", "learned_noise", "generated_code", room)
    yield case("quiet", "value", "Evaluation: no noise, and no load loss.", "learned_noise", room, noisy=False)
    yield case(
        "five_experts",
        "value",
        "Three of five experts, other weights.",
        "learned_noise",
        sizes=(8, 5, D),
        choices=3,
        importance_weight=0.5,
        load_weight=0.25,
        balance_weight=0.125,
        z_weight=0.0625,
    )
    yield case("factor", "overflow", "A capacity, with drops.", "overflow_drop", choices=2, capacity_factor=0.5)
    yield case(
        "priority",
        "overflow",
        "Best tokens first.",
        "priority_order",
        choices=2,
        capacity_factor=0.5,
        batch_priority="max",
    )
    yield case(
        "zero_kernels",
        "tie",
        "As initialised, without noise: every logit is 0.",
        "tie_order",
        noisy=False,
        zero=True,
        sizes=(8, 4, D),
    )
    yield case("one_choice", "degenerate", "One choice has the gate 1.", "softmax_of_choices", choices=1)
    yield case("all_choices", "degenerate", "All experts, without noise.", "degenerate_size", noisy=False, choices=E)
    yield case("gradient", "gradient", "By tokens, both kernels, noise and experts.", "stop_gradient", "learned_noise")
    good = {part: kernel(f"negative/{part}") for part in ("kernel", "noise_kernel")}
    yield from router_faults(
        name, good, choices=(2, E + 1), batch_priority=("none", "mean"), capacity_factor=(1.0, 0.0)
    )


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
    good = {part: tensor(grid(f"{name}/negative/{part}", (G, T, D), reach=1.0), axes) for part in ("tokens", "noise")}
    config = {"epsilon": 0.01}
    for part in good:
        yield from array_faults(name, "jitter", part, good, config, "" if part == "tokens" else f"{part}_")
    fewer = {"noise": tensor(grid(f"{name}/negative/few", (G, T - 1, D), reach=1.0), axes)}
    yield fault(name, "jitter", "noise_shape", "ShapeError", "noise", good, config, wrong_inputs=fewer)
    yield fault(name, "jitter", "epsilon", "ConfigError", "epsilon", good, config, wrong_config={"epsilon": -0.5})


def _switch() -> Iterator[Definition]:
    name, uniform = "switch", ("tokens width", 1.0, 0.0)

    def case(
        case: str,
        kind: str,
        purpose: str,
        *flags: str,
        noisy: bool = False,
        sizes: tuple[int, int, int] = (T, E, D),
        zero: bool = False,
        **fields: Any,
    ) -> Definition:
        weights = kernel(f"routers/{name}/{case}", sizes[2], sizes[1])
        if zero:
            weights = tensor(np.zeros((sizes[2], sizes[1])), "width experts")
        parameters, noise = {"kernel": weights}, uniform if noisy else None
        return router_case(name, case, kind, purpose, *flags, parameters=parameters, noise=noise, sizes=sizes, **fields)

    yield case("values", "value", "Evaluation: the tokens as they are.", "generated_code")
    yield case("jitter", "value", "Training: router and losses see jittered tokens.", "jitter_factor", noisy=True)
    yield case("large_jitter", "value", "A large jitter.", "jitter_factor", noisy=True, jitter=0.5, z_weight=0.5)
    yield case("factor_one", "overflow", "Fewer slots: tokens are dropped.", "overflow_drop", capacity_factor=0.5)
    yield case("zero_kernel", "tie", "Every score is equal.", "tie_order", zero=True, sizes=(8, 4, D))
    yield case("one_expert", "degenerate", "One expert.", "degenerate_size", sizes=(T, 1, D))
    yield case("one_token", "degenerate", "One token.", "degenerate_size", sizes=(1, E, D))
    yield case(
        "gradient", "gradient", "By tokens, kernel, noise and experts.", "stop_gradient", noisy=True, jitter=0.25
    )
    good = {"kernel": kernel("negative/kernel")}
    yield from router_faults(name, good, choices=(1, 2), batch_priority=("none", "mean"), capacity_factor=(1.0, 0.0))
    yield from router_faults(name, good, slots_per_expert=(2, 0))


def _s_base() -> Iterator[Definition]:
    name = "s_base"

    def case(
        case: str,
        kind: str,
        purpose: str,
        *flags: str,
        train: bool = True,
        sizes: tuple[int, int, int] = (T, E, D),
        zero: bool = False,
        **fields: Any,
    ) -> Definition:
        weights = kernel(f"routers/{name}/{case}", sizes[2], sizes[1])
        if zero:
            weights = tensor(np.zeros((sizes[2], sizes[1])), "width experts")
        parameters = {"kernel": weights}
        return router_case(name, case, kind, purpose, *flags, parameters=parameters, train=train, sizes=sizes, **fields)

    plan = "plan_in_training"
    yield case("training", "value", "The plan chooses; there is room for every token.", plan, "room_for_all")
    yield case("evaluation", "value", "The softmax chooses.", plan, "room_for_all", "generated_code", train=False)
    yield case("sigmoid", "value", "The gate is a sigmoid.", "combine_scores", combine_with="sigmoid")
    yield case(
        "sigmoid_evaluation", "value", "At evaluation, too.", "combine_scores", train=False, combine_with="sigmoid"
    )
    yield case("few_iterations", "value", "One round of the plan.", "column_update_first", sinkhorn_iterations=1)
    yield case("factor", "overflow", "A capacity, with drops.", "overflow_drop", capacity_factor=0.5)
    yield case("zero_kernel", "tie", "Every score is equal.", "tie_order", train=False, zero=True, sizes=(8, 4, D))
    yield case("one_expert", "degenerate", "One expert.", "degenerate_size", train=False, sizes=(T, 1, D))
    yield case("one_token", "degenerate", "One token.", "degenerate_size", train=False, sizes=(1, E, D))
    yield case("gradient", "gradient", "Through the gate alone.", "stop_gradient")
    yield case("gradient_sigmoid", "gradient", "Through the sigmoid.", "stop_gradient", combine_with="sigmoid")
    good = {"kernel": kernel("negative/kernel")}
    yield from router_faults(name, good, choices=(1, 2), combine_with=("sigmoid", "plan"), capacity_factor=(1.0, 0.0))
    sized = {"logits": logits(f"{name}/negative")}
    config: dict[str, Any] = {"router": {"tokens": T, "experts": E, "width": D}, "train": True}
    yield from array_faults(name, "gates", "logits", sized, config)
    sigmoid = {**config, "router": {**config["router"], "combine_with": "sigmoid"}}
    yield from array_faults(name, "gates", "logits", sized, sigmoid, "sigmoid_")


def _kept_choices() -> Iterator[Definition]:
    """Token Choice where some choices are not made."""

    def case(case: str, kind: str, purpose: str, keep: Any, **config: Any) -> Definition:
        inputs = {"scores": utilities(f"keep/{case}"), "keep": tensor(np.asarray(keep), "groups tokens choices")}
        return Definition("token_choice", case, kind, purpose, inputs, config, flags=("choice_not_made",))

    some = (grid("keep/some", (G, T, 2)) > 0).astype(int)
    yield case("keep", "overflow", "A choice that is not made takes no slot.", some, choices=2, capacity=2)
    none = np.zeros((G, T, 1), int)
    yield case("keep_none", "degenerate", "No choice is made.", none, choices=1, capacity=2)
    good = {"scores": utilities("keep/negative"), "keep": tensor(some, "groups tokens choices")}
    yield from sizes("token_choice", "allocation", good, {"choices": 2, "capacity": 2}, keep=2)


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
    apart = groups_tokens(utilities(f"{name}/f").array + np.arange(E) / 64)
    yield case("gradient_scores", "gradient", "By the scores where they are the weights, too.", apart)
    good = {"scores": utilities(f"{name}/negative"), "combine_scores": utilities(f"{name}/negative/weights")}
    config = {"choices": 2}
    for part in good:
        yield from array_faults(name, "normalize", part, good, config, "" if part == "scores" else f"{part}_")
    fewer = {"combine_scores": utilities(f"{name}/negative/few", (G, T - 1, E))}
    yield fault(name, "normalize", "shape", "ShapeError", "combine_scores", good, config, wrong_inputs=fewer)
    nothing = {"combine_scores": groups_tokens(np.zeros((G, T, E)))}
    yield fault(name, "normalize", "no_mass", "ContractError", "combine_scores", good, config, wrong_inputs=nothing,
                purpose="The chosen experts of a token have the sum 0.")  # fmt: skip
    for wrong, value in (("no_choice", 0), ("many_choices", E + 1)):
        yield fault(name, "normalize", wrong, "ConfigError", "choices", good, config, wrong_config={"choices": value})


def _gshard() -> Iterator[Definition]:
    name, uniform = "gshard", ("tokens", 0.5, 0.5)

    def case(
        case: str,
        kind: str,
        purpose: str,
        *flags: str,
        noisy: bool = True,
        sizes: tuple[int, int, int] = (T, E, D),
        zero: bool = False,
        **fields: Any,
    ) -> Definition:
        weights = kernel(f"routers/{name}/{case}", sizes[2], sizes[1])
        if zero:
            weights = tensor(np.zeros((sizes[2], sizes[1])), "width experts")
        parameters, noise = {"kernel": weights}, uniform if noisy else None
        stages = () if noisy else ("logits", "softmax", "normalize", "allocation", "layer", "route")
        options: dict[str, Any] = {"parameters": parameters, "noise": noise, "sizes": sizes, "stages": stages}
        return router_case(name, case, kind, purpose, *flags, **options, **fields)

    second = "choice_not_made"
    yield case("training", "value", "Second experts are kept at random.", second, "generated_code", capacity_factor=2.0)
    yield case("evaluation", "value", "Second experts are all kept.", second, noisy=False)
    yield case(
        "five_experts",
        "value",
        "Five experts, other losses.",
        second,
        sizes=(8, 5, D),
        importance_weight=0.5,
        z_weight=0.25,
    )
    yield case(
        "factor", "overflow", "Drops after the gates are divided.", "overflow_drop", "renormalised", capacity_factor=0.5
    )
    yield case("not_normalised", "value", "Gates as they are.", "renormalised", normalize_selected=False)
    yield case("zero_kernel", "tie", "Every score is equal.", "tie_order", noisy=False, zero=True, sizes=(8, 4, D))
    yield case("two_experts", "degenerate", "Two experts.", "degenerate_size", sizes=(T, 2, D))
    yield case("gradient", "gradient", "By tokens, kernel and experts.", "stop_gradient")
    good = {"kernel": kernel("negative/kernel")}
    yield from router_faults(name, good, choices=(2, 1), batch_priority=("none", "mean"), capacity_factor=(1.0, 0.0))
    gates = {
        "normalized": utilities("gshard/negative"),
        "noise": tensor(grid("gshard/negative/noise", (G, T), reach=0.5, centre=0.5), "groups tokens"),
    }
    config = {"router": {"tokens": T, "experts": E, "width": D}, "train": True}
    fewer = {"noise": tensor(grid("gshard/negative/few", (G, T - 1), reach=0.5, centre=0.5), "groups tokens")}
    yield fault(name, "second", "noise_shape", "ShapeError", "noise", gates, config, wrong_inputs=fewer)
    yield from array_faults(name, "second", "noise", gates, config, "noise_")
    yield from array_faults(name, "second", "normalized", gates, config, "gates_", named="gates")
    alone = {"normalized": groups_tokens(np.ones((G, T, 1)))}
    yield fault(name, "second", "one_expert", "ConfigError", "choices", gates, config, wrong_inputs=alone,
                purpose="There is no second expert.")  # fmt: skip
