"""Cases of sparsity-constrained transport: the projections, both objectives and the plan."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from moespec.conformance.cases.definition import Definition, groups_tokens, tensor
from moespec.conformance.cases.faults import SHAPE, SMALL, array_faults, option, size_faults
from moespec.conformance.cases.inputs import utilities
from moespec.conformance.draw import grid
from moespec.conformance.format import Tensor

__all__ = ["cases"]

G, T, E = 2, 6, 3


def cases() -> Iterator[Definition]:
    """All cases of this module."""
    yield from _values()
    yield from _plan_faults()
    yield from _projection_faults()
    yield from _objective_faults()


def _values() -> Iterator[Definition]:
    def case(
        name: str,
        kind: str,
        purpose: str,
        stage: str,
        inputs: dict[str, Tensor],
        flags: tuple[str, ...] = (),
        of: str = "",
        **config: Any,
    ) -> Definition:
        gradient = (of, tuple(inputs)) if of else None
        return Definition("sparse_transport", name, kind, purpose, inputs, config, (stage,), flags, gradient)

    def rows(key: str, shape: tuple[int, int] = (3, 4)) -> dict[str, Tensor]:
        return {"values": tensor(grid(key, shape, reach=1.0, step=0.0625), "rows n")}

    order = ("tie_order",)
    yield case("simplex", "value", "Projection on the simplex.", "simplex", rows("transport/a"))
    yield case("simplex_mass", "value", "A mass of 2.5.", "simplex", rows("transport/b"), mass=2.5)
    yield case(
        "simplex_one", "degenerate", "One number becomes the mass.", "simplex", rows("transport/c", (2, 1)), mass=0.5
    )
    yield case("sparse_simplex", "value", "At most two numbers.", "sparse_simplex", rows("transport/d"), nonzeros=2)
    yield case("sparse_simplex_all", "degenerate", "All numbers.", "sparse_simplex", rows("transport/e"), nonzeros=4)
    equal = tensor(np.array([[0.5, 0.5, 0.5, 0.5], [0.25, 0.75, 0.25, 0.25], [0.0, -0.0, -1.0, 0.0]]), "rows n")
    yield case(
        "sparse_simplex_ties",
        "tie",
        "Among equals the lower index is kept.",
        "sparse_simplex",
        {"values": equal},
        order,
        nonzeros=2,
    )

    for stage, options in (("simplex", {}), ("sparse_simplex", {"nonzeros": 2})):
        yield case(
            f"{stage}_gradient", "gradient", "What is kept moves with its mean.", stage,
            rows(f"transport/{stage}/gradient"), (), "projection", mass=1.5, **options,
        )  # fmt: skip

    def potentials(key: str, **shapes: int) -> dict[str, Tensor]:
        drawn = {
            name: tensor(grid(f"{key}/{name}", (G, size), reach=0.5, step=0.0625), f"groups {axis}")
            for (name, size), axis in zip(shapes.items(), ("tokens", "experts"), strict=False)
        }
        return {"utility": utilities(key), **drawn}

    yield case("semi_dual", "value", "At a potential.", "semi_dual", potentials("transport/f", potential=T), capacity=2)
    yield case(
        "semi_dual_all",
        "degenerate",
        "Room for all tokens, half the regularisation.",
        "semi_dual",
        potentials("transport/g", potential=T),
        capacity=T,
        regularization=0.5,
    )
    both = {"token_potential": T, "expert_potential": E}
    yield case("dual", "value", "At two potentials.", "dual", potentials("transport/h", **both), capacity=2)
    yield case(
        "dual_regularised", "value", "Twice the regularisation.", "dual", potentials("transport/i", **both),
        capacity=2, regularization=2.0,
    )  # fmt: skip

    for stage, lengths in (("semi_dual", {"potential": T}), ("dual", both)):
        inputs = potentials(f"transport/{stage}/gradient", **lengths)
        yield case(
            f"{stage}_gradient", "gradient", "The value, by potentials and utility.", stage, inputs, (), "value",
            capacity=2, regularization=0.5,
        )  # fmt: skip

    def plan(
        name: str, kind: str, purpose: str, values: Tensor, flags: tuple[str, ...] = (), **config: Any
    ) -> Definition:
        return case(name, kind, purpose, "transport", {"utility": values}, flags, **config)

    few = ("solver_steps",)
    yield plan("plan", "value", "Twenty steps of Adam by default.", utilities("transport/j"), few, capacity=2)
    yield plan("plan_double", "value", "Twice as many slots as needed.", utilities("transport/k"), few, capacity=4)
    yield plan(
        "plan_five",
        "value",
        "Five larger steps.",
        utilities("transport/l"),
        few,
        capacity=2,
        steps=5,
        learning_rate=0.0625,
    )
    yield plan("plan_token", "value", "Sparse rows.", utilities("transport/m"), capacity=2, sparsity="token")
    yield plan(
        "plan_none", "value", "No sparsity, only regularisation.", utilities("transport/n"), capacity=2, sparsity="none"
    )
    yield plan(
        "plan_early_stop",
        "value",
        "A tolerance that the first gradient meets stops after the first update.",
        utilities("transport/o"),
        few,
        capacity=2,
        tolerance=64.0,
    )
    yield plan(
        "plan_equal",
        "tie",
        "Equal utilities, as at the start of training: lower tokens first, at every step.",
        groups_tokens(np.full((G, T, E), 0.25)),
        order,
        capacity=2,
    )
    yield plan(
        "plan_one_expert",
        "degenerate",
        "One expert.",
        utilities("transport/q", (G, T, 1)),
        ("degenerate_size",),
        capacity=T,
    )
    yield plan("plan_one_slot", "degenerate", "One slot.", utilities("transport/r"), ("degenerate_size",), capacity=1)


def _plan_faults() -> Iterator[Definition]:
    name, stage = "sparse_transport", "transport"
    used, config = {"utility": utilities("negative/utility", SHAPE)}, {"capacity": 2, "steps": 2}
    yield from array_faults(name, stage, "utility", used, config)
    options: tuple[tuple[str, str, Any], ...] = (
        ("no_slot", "capacity", 0),
        ("many_slots", "capacity", SMALL.tokens + 1),
        ("steps", "steps", 0),
        ("solver", "solver", "sgd"),
        ("sparsity", "sparsity", "row"),
        ("regularization", "regularization", 0.0),
    )
    twin = {**config, "solver": "adam", "sparsity": "expert", "regularization": 1.0}
    for case, field, value in options:
        yield option(name, stage, case, field, used, twin, **{field: value})
    for field in ("learning_rate", "tolerance"):
        yield option(name, stage, field, field, used, {**config, field: 0.5}, **{field: 0.0})
    rows = {"capacity": 2, "steps": 2, "sparsity": "token"}
    yield option(name, stage, "many_experts", "capacity", used, rows, capacity=SMALL.experts + 1)


def _projection_faults() -> Iterator[Definition]:
    name, projected = "sparse_transport", {"values": tensor(grid("negative/values", (1, 4)), "rows n")}
    for stage, config in (("simplex", {}), ("sparse_simplex", {"nonzeros": 2})):
        # A target takes rows of any number.
        yield from array_faults(name, stage, "values", projected, config, f"{stage}_", "rank")
        mass = {**config, "mass": 1.0}
        yield option(name, stage, stage.replace("simplex", "mass"), "mass", projected, mass, mass=0.0)
    yield option(name, "sparse_simplex", "nonzeros", "nonzeros", projected, {"nonzeros": 2}, nonzeros=7)


def _objective_faults() -> Iterator[Definition]:
    name, config = "sparse_transport", {"capacity": 2, "regularization": 1.0}
    potentials = {
        "potential": tensor(grid("negative/alpha", (SMALL.groups, SMALL.tokens)), "groups tokens"),
        "token_potential": tensor(grid("negative/alpha", (SMALL.groups, SMALL.tokens)), "groups tokens"),
        "expert_potential": tensor(grid("negative/beta", (SMALL.groups, SMALL.experts)), "groups experts"),
    }
    for stage, *names in (("semi_dual", "potential"), ("dual", "token_potential", "expert_potential")):
        dual = {"utility": utilities("negative/utility", SHAPE), **{each: potentials[each] for each in names}}
        for argument in dual:
            yield from array_faults(name, stage, argument, dual, config, f"{stage}_{argument}_")
        yield from size_faults(name, stage, dual, config, f"{stage}_", **dict.fromkeys(names, 1))
        yield option(name, stage, f"{stage}_many_slots", "capacity", dual, config, capacity=SMALL.tokens + 1)
        yield option(name, stage, f"{stage}_regularization", "regularization", dual, config, regularization=0.0)
