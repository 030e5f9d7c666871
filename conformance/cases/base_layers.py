"""Cases of BASE layers: the balanced assignment where one is the best and where several are, and the router."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from moespec.conformance.cases.definition import Definition, both, groups_tokens, tensor
from moespec.conformance.cases.faults import SHAPE, SMALL, array_faults, fault, option, router_config, size_faults
from moespec.conformance.cases.inputs import experts, kernel, scores, tokens
from moespec.conformance.cases.margins import clear_tokens
from moespec.conformance.draw import grid, permutation
from moespec.conformance.format import Tensor
from moespec.conformance.margins import assignment_margin
from moespec.spec.examples import LOGITS

__all__ = ["cases"]

G, T, E, D = 2, 6, 3, 4
ENOUGH = 0.02
"""Of the sum of all scores of two assignments, which bfloat16 rounds by 0.016."""


def cases() -> Iterator[Definition]:
    """All cases of this module."""
    yield from _unique()
    yield from _several()
    yield from _routings()
    yield from _router()
    yield from _faults()
    yield from _router_faults()


def _drawn(key: str, shape: tuple[int, int, int], reach: float = 3.0, step: float = 0.125) -> Tensor:
    """Scores of which one balanced assignment is the best, by the largest margin among some draws."""

    def group(g: int) -> Any:
        draws = [grid(f"{key}/{g}/{attempt}", shape[1:], reach=reach, step=step) for attempt in range(20)]
        return max(draws, key=lambda values: assignment_margin(values, np.abs(values)))

    return groups_tokens(np.stack([group(g) for g in range(shape[0])]))


def _case(name: str, kind: str, purpose: str, values: Tensor, stages: tuple[str, ...], *flags: str) -> Definition:
    return Definition("base_layers", name, kind, purpose, {"scores": values}, {}, stages, flags)


def _unique() -> Iterator[Definition]:
    stages = ("assignment", "balance", "greedy")

    def case(name: str, kind: str, purpose: str, values: Tensor, *flags: str) -> Definition:
        return _case(name, kind, purpose, values, stages, "exact_balance", *flags)

    yield case("worked", "value", "The worked example of the specification.", both(LOGITS))
    yield case("three_experts", "value", "Two tokens for each of three experts.", _drawn("base/a", (G, T, E)))
    yield case("two_experts", "value", "Six tokens for each of two experts.", _drawn("base/b", (G, 12, 2)))
    yield case("square", "value", "As many tokens as experts.", _drawn("base/c", (G, 5, 5)), "wrong_axis")
    yield case("many", "value", "Four tokens for each of eight experts.", _drawn("base/d", (1, 32, 8), step=0.0625))
    crowd = np.asarray(_drawn("base/e", (G, 8, 4)).array) + np.array([4.0, 0.0, 0.0, -4.0], np.float32)
    yield case("crowd", "overflow", "All tokens want the same expert.", groups_tokens(crowd))
    chain = np.full((4, 4), -8.0) + np.eye(4) * 8 + np.eye(4, k=1) * 9
    chain[0, 0], chain[3, 0] = 8.0, 6.0
    yield case("chain", "overflow", "One change moves every other token.", both(chain))
    far = np.asarray(_drawn("base/f", (G, T, E)).array) + np.array([[0.0], [16.0], [-16.0], [8.0], [-4.0], [28.0]])
    yield case("shifted_rows", "value", "A constant for each token changes nothing but the total.", groups_tokens(far))
    small = np.asarray(_drawn("base/r", (G, 12, 3), reach=0.5, step=0.015625).array)
    small[:, 0] = [4.0, -4.0, 0.0]
    yield case(
        "small_gains",
        "value",
        "Gains so small against the range that an auction with its bids misses one.",
        groups_tokens(small),
    )
    size = "degenerate_size"
    yield case("one_slot", "degenerate", "One token for each expert.", _drawn("base/g", (G, 3, 3)), size)
    yield _case(
        "one_expert", "degenerate", "One expert takes all.", _drawn("base/h", (G, T, 1)), ("balance", "greedy"), size
    )


def _several() -> Iterator[Definition]:
    def case(name: str, kind: str, purpose: str, values: Any, *stages: str) -> Definition:
        return _case(name, kind, purpose, groups_tokens(values), ("balance", *stages), "exact_balance", "any_optimum")

    yield case("all_equal", "tie", "Equal scores: every balanced assignment is the best.", np.full((1, 8, 4), 0.5))
    yield case("coarse", "tie", "Many best assignments.", grid("base/j", (G, 12, 3), reach=2.0, step=1.0))
    rows = np.repeat(grid("base/k", (G, 1, E)), T, axis=1)
    yield case("equal_tokens", "tie", "Equal tokens, which all want the same expert.", rows)
    signed = np.where(grid("base/l", (G, T, E)) > 0, 0.0, -0.0)
    yield case("signed_zero", "tie", "Zero and minus zero are equal.", signed, "greedy")
    near = 0.5 + grid("base/m", (G, T, E), reach=2.0, step=1.0) / 256
    yield case("neighbours", "near_tie", "Scores that are neighbours in bfloat16.", near, "greedy")


def _routings() -> Iterator[Definition]:
    def case(
        name: str, kind: str, purpose: str, values: Tensor, expert: Any, capacity: int, *flags: str, **options: Any
    ) -> Definition:
        inputs = {"scores": values, "expert": tensor(expert, "groups tokens")}
        config = {"capacity": capacity}
        return Definition("base_layers", name, kind, purpose, inputs, config, ("routing",), flags, **options)

    even = np.stack([permutation(f"base/expert/{g}", T) % E for g in range(G)])
    uneven = np.zeros((G, T), np.int32)
    values = groups_tokens(grid("base/n", (G, T, E), reach=3.0))
    yield case("routing", "value", "The sigmoid of the score; tokens by index.", values, even, 2, "sigmoid_gate")
    yield case("routing_greedy", "value", "Room for all in one expert.", values, uneven, T, "sigmoid_gate")
    yield case("routing_full", "overflow", "A token that finds no room is dropped.", values, uneven, 4, "overflow_drop")
    large = groups_tokens(grid("base/o", (G, T, E), reach=80.0, step=1.0))
    yield case("routing_large", "value", "Scores whose exponential is large.", large, even, 2, "large_logits")
    yield case(
        "gradient_routing", "gradient", "The weights carry the gradient.", values, even, 2, "sigmoid_gate",
        gradient=("weights", ("scores",)),
    )  # fmt: skip
    yield Definition(
        "base_layers", "gradient_sum", "gradient", "The assignment carries no gradient, the total does.",
        {"scores": _drawn("base/p", (G, T, E))}, {}, ("balance",), ("exact_balance",), ("objective", ("scores",)),
    )  # fmt: skip


def _router() -> Iterator[Definition]:
    def case(
        name: str,
        kind: str,
        purpose: str,
        *flags: str,
        train: bool,
        sizes: tuple[int, int, int] = (T, E, D),
        zero: bool = False,
        steps: bool = False,
    ) -> Definition:
        t, e, d = sizes
        key = f"routers/base/{name}"
        config = {"router": {"tokens": t, "experts": e, "width": d}, "train": train}
        weights = tensor(np.zeros((d, e)), "width experts") if zero else kernel(f"{key}/kernel", d, e)
        router = {"router/kernel": weights}
        drawn = np.stack([clear_tokens("base", f"{key}/{g}", config, router, enough=ENOUGH)[0] for g in range(G)])
        inputs = {"tokens": tensor(drawn, "groups tokens width"), **router, **experts(key, e, d, 3, d)}
        stages: tuple[str, ...] = ("scores", "assignment" if train else "greedy", "routing", "layer", "route")
        gradient = ("output", tuple(inputs)) if kind == "gradient" else None
        if gradient or not steps:
            stages = ("route",)
        return Definition(
            "base", name, kind, purpose, inputs, config, stages, flags, gradient, exact_ties=zero or e == 1
        )

    yield case(
        "training", "value", "The best balanced assignment.", "generated_code", "exact_balance", train=True, steps=True
    )
    yield case(
        "evaluation", "value", "Each token in its best expert.", "generated_code", "empty_slot", train=False, steps=True
    )
    yield case(
        "zero_kernel",
        "tie",
        "Equal scores at evaluation: the first expert.",
        "tie_order",
        train=False,
        zero=True,
        steps=True,
    )
    yield case("one_expert", "degenerate", "One expert.", "degenerate_size", train=True, sizes=(T, 1, D))
    yield case("one_token", "degenerate", "One token at evaluation.", "degenerate_size", train=False, sizes=(1, E, D))
    yield case("gradient", "gradient", "Through the gate and the experts.", "stop_gradient", train=True)
    yield case("gradient_evaluation", "gradient", "Of the greedy assignment.", "stop_gradient", train=False)


def _faults() -> Iterator[Definition]:
    name, (g, t, e, _) = "base_layers", SMALL
    chosen = {"scores": scores("negative/scores", SHAPE)}
    uneven = {"scores": scores("negative/uneven", (g, t + 1, e))}
    yield from array_faults(name, "balance", "scores", chosen, {}, "assignment_")
    yield fault(name, "balance", "uneven", "ShapeError", "scores", chosen, {}, wrong_inputs=uneven)
    yield from array_faults(name, "greedy", "scores", chosen, {}, "greedy_")
    expert = np.tile(np.arange(t) % e, (g, 1))
    given, config = {**chosen, "expert": tensor(expert, "groups tokens")}, {"capacity": 2}
    yield from array_faults(name, "routing", "scores", given, config, "routing_")
    yield option(name, "routing", "no_slot", "capacity", given, config, capacity=0)
    for case, error, wrong, purpose in (
        ("dtype", "DtypeError", expert.astype(float), ""),
        ("shape", "ShapeError", expert[:, :-1], ""),
        ("absent", "ContractError", expert + 1, "There is no such expert."),
    ):
        yield fault(
            name, "routing", f"expert_{case}", error, "expert", given, config,
            wrong_inputs={"expert": tensor(wrong, "groups tokens")}, purpose=purpose,
        )  # fmt: skip


def _router_faults() -> Iterator[Definition]:
    g, t, e, d = SMALL
    given = {
        "tokens": tokens("negative/tokens", (g, t, d)),
        "router/kernel": kernel("negative/kernel", d, e),
    }
    even: dict[str, Any] = {"router": router_config(), "train": True}
    odd, more = {"tokens": tokens("negative/tokens/odd", (g, t + 1, d))}, {"router": router_config(tokens=t + 1)}
    yield fault("base", "route", "uneven", "ShapeError", "scores", given, even, wrong_inputs=odd, wrong_config=more)
    yield fault("base", "route", "tokens", "ShapeError", "tokens", given, even, wrong_inputs=odd)
    yield from size_faults("base", "route", given, even, router__kernel=1)
