"""Cases of sparsity-constrained transport: the projections, both objectives and the plan."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, call, single, tensor
from moespec.conformance.author.inputs import grid, groups_tokens, utilities
from moespec.conformance.author.near_ties import near_ties
from moespec.conformance.author.variant import Spec, Variant, below_zero, fixed, variant
from moespec.conformance.format import Tensor
from moespec.spec import ConfigError

TRANSPORT = "sparse_transport_affinity"

G, T, E = 2, 6, 3
case = partial(single, "sparse_transport")
projection = partial(case, "project_simplex")
sparse_projection = partial(case, "project_sparse_simplex")


def cases() -> Iterator[Definition]:
    yield from _projections()
    yield from _objectives()
    yield from _plans()


def _projections() -> Iterator[Definition]:
    def rows(key: str, shape: tuple[int, int] = (3, 4)) -> Tensor:
        return tensor(grid(f"transport/{key}", shape, reach=1.0, step=0.0625), "rows n")

    yield projection("simplex", "value", "Projection on the simplex.", values=rows("a"))
    purpose = "One number becomes the mass."
    yield projection("simplex_one", "degenerate", purpose, values=rows("c", (2, 1)), mass=0.5)
    yield sparse_projection("sparse_simplex", "value", "At most two numbers.", values=rows("d"), nonzeros=2)
    yield sparse_projection("sparse_simplex_all", "degenerate", "All numbers.", values=rows("e"), nonzeros=4)
    equal = tensor(np.array([[0.5, 0.5, 0.5, 0.5], [0.25, 0.75, 0.25, 0.25], [0.0, -0.0, -1.0, 0.0]]), "rows n")
    purpose = "Among equals the lower index is kept."
    yield sparse_projection("sparse_simplex_ties", "tie", purpose, "tie_order", values=equal, nonzeros=2)
    purpose = "What is kept moves with its mean."
    yield projection("simplex_gradient", "gradient", purpose, values=rows("simplex/gradient"), mass=1.5)
    values = rows("sparse_simplex/gradient")
    yield sparse_projection("sparse_simplex_gradient", "gradient", purpose, values=values, mass=1.5, nonzeros=2)


def _objectives() -> Iterator[Definition]:
    semi_dual, dual = partial(case, "transport_semi_dual"), partial(case, "transport_dual")

    def potentials(key: str, **sizes: int) -> dict[str, Any]:
        """Draws a utility, and the potentials of tokens and experts whose names are in `sizes`."""
        names = zip(sizes.items(), ("tokens", "experts"), strict=False)
        return {"utility": utilities(f"transport/{key}")} | {
            name: tensor(grid(f"transport/{key}/{name}", (G, size), reach=0.5, step=0.0625), f"groups {axis}")
            for (name, size), axis in names
        }

    one, two = {"potential": T}, {"token_potential": T, "expert_potential": E}
    yield semi_dual("semi_dual", "value", "At a potential.", **potentials("f", **one), capacity=2)
    purpose = "Room for all tokens, half the regularisation."
    half = {"capacity": T, "regularization": 0.5}
    yield semi_dual("semi_dual_all", "degenerate", purpose, **potentials("g", **one), **half)
    yield dual("dual", "value", "At two potentials.", **potentials("h", **two), capacity=2)
    purpose, half = "The value, by potentials and utility.", {"capacity": 2, "regularization": 0.5}
    yield semi_dual("semi_dual_gradient", "gradient", purpose, **potentials("semi_dual/gradient", **one), **half)
    yield dual("dual_gradient", "gradient", purpose, **potentials("dual/gradient", **two), **half)


def _plans() -> Iterator[Definition]:
    def plan(name: str, kind: str, purpose: str, utility: Tensor, *flags: str, capacity: int = 2,
             **options: Any) -> Definition:  # fmt: skip
        arguments: dict[str, Any] = {"utility": utility, "capacity": capacity, **options}
        return case("sparse_transport_affinity", name, kind, purpose, *flags, **arguments)

    few, size = "solver_steps", "degenerate_size"
    yield plan("plan", "value", "Twenty steps of Adam by default.", utilities("transport/j"), few)
    yield plan("plan_double", "value", "Twice as many slots as needed.", utilities("transport/k"), few, capacity=4)
    yield plan("plan_token", "value", "Sparse rows.", utilities("transport/m"), sparsity="token")
    pair: dict[str, Any] = {"objective": "dual", "learning_rate": 0.0625}
    yield plan("plan_dual", "value", "The plan of the dual.", utilities("transport/dual"), few, **pair)
    purpose = "The same with sparse rows."
    yield plan("plan_dual_token", "value", purpose, utilities("transport/dual/token/1"), few, sparsity="token", **pair)
    purpose = "No sparsity, only regularisation, whatever the capacity."
    yield plan("plan_none", "value", purpose, utilities("transport/n"), capacity=T + 2, sparsity="none")
    purpose = "A tolerance that the first gradient meets stops after the first update."
    yield plan("plan_early_stop", "value", purpose, utilities("transport/o"), few, tolerance=64.0)
    purpose = "A tolerance that an update's gradient meets with each of its entries, and a later one's with its norm."
    entries: dict[str, Any] = {"capacity": 4, "learning_rate": 0.0625, "tolerance": 0.59375}
    yield plan("plan_stop_norm", "value", purpose, utilities("transport/stop/1", (1, T, E)), few, **entries)
    purpose = "Two groups, each of which stops by itself."
    apart = groups_tokens(np.concatenate([utilities(f"transport/stop/{key}", (1, T, E)).array for key in (1, 0)]))
    yield plan("plan_stop_alone", "value", purpose, apart, few, **entries)
    purpose = "Equal utilities, as at the start of training: lower tokens first, at every step."
    yield plan("plan_equal", "tie", purpose, groups_tokens(np.full((G, T, E), 0.25)), "tie_order", exact_ties=True)
    yield from near_ties(
        "sparse_transport", call("sparse_transport_affinity", {"utility": "router_logits"}, capacity=3)
    )
    alone = utilities("transport/q", (G, T, 1))
    yield plan("plan_one_expert", "degenerate", "One expert.", alone, size, capacity=T)
    yield plan("plan_one_slot", "degenerate", "One slot.", utilities("transport/r"), size, capacity=1)


def ties_to_the_higher_index(B: Spec, values: Array, **options: Any) -> Any:
    """Among equal values, the sparse projection keeps the values of higher index."""
    return B.project_sparse_simplex(values[..., ::-1], **options)[..., ::-1]


def constant_in_the_conjugate(
    B: Spec, potential: Array, utility: Array, *, capacity: int, regularization: float = 1.0
) -> Any:
    """The conjugate of each column contains the constant gamma b / 2."""
    result = B.transport_semi_dual(potential, utility, capacity=capacity, regularization=regularization)
    _, tokens, experts = utility.shape
    return result._replace(value=result.value - regularization * tokens / experts / 2 * experts)


def dual_without_cardinality(
    B: Spec, token_potential: Array, expert_potential: Array, utility: Array, **options: Any
) -> Any:
    """The dual allows any number of positive entries per column."""
    return B.transport_dual(token_potential, expert_potential, utility, **{**options, "capacity": utility.shape[1]})


def rows_are_sparse(B: Spec, utility: Array, *, capacity: int, sparsity: str = "expert", **options: Any) -> Array:
    """The rows of the plan are sparse, not the columns."""
    plan = B.sparse_transport_affinity(utility, capacity=capacity, sparsity=sparsity, **options)
    if sparsity != "expert":
        return plan
    capacity = min(capacity, utility.shape[2])
    return B.sparse_transport_affinity(utility, capacity=capacity, sparsity="token", **options)


def _stopping(size: Callable[[Any], Any], parts: Callable[[Any], Iterable[Any]]) -> Callable[..., Any]:
    """Returns a solver that solves each of `parts` until the gradient of every group in the part has had a `size` within the tolerance."""

    def solved(
        B: Spec, utility: Array, *, capacity: int, sparsity: str = "expert", solver: str = "adam", steps: int = 20,
        tolerance: float = 1e-3, **options: Any,
    ) -> Any:  # fmt: skip
        more: dict[str, Any] = {"capacity": capacity, "sparsity": sparsity, "solver": solver, **options}
        if sparsity != "expert" or solver != "adam" or options.get("objective") == "dual":
            return B.sparse_transport_affinity(utility, steps=steps, tolerance=tolerance, **more)
        start: dict[str, Any] = {"capacity": capacity, "regularization": options.get("regularization", 1.0)}
        plans = []
        for part in parts(utility):
            plan, reached = B.transport_semi_dual(np.zeros(part.shape[:2]), part, **start).plan, np.array(False)
            for count in range(1, steps + 1):
                reached = reached | (size(1 - plan.sum(axis=2)) <= tolerance)
                plan = B.sparse_transport_affinity(part, steps=count, tolerance=1e-300, **more)
                if reached.all():
                    break
            plans.append(plan)
        return np.concatenate(plans)

    return solved


def infeasible_refused(B: Spec, utility: Array, *, capacity: int, sparsity: str = "expert", **options: Any) -> Array:
    """If a plan may have fewer nonzero entries than tokens, an error is raised, because no such plan satisfies all row sums."""
    plan = B.sparse_transport_affinity(utility, capacity=capacity, sparsity=sparsity, **options)
    if sparsity == "expert" and capacity * utility.shape[2] < utility.shape[1]:
        raise ConfigError(f"capacity: {capacity} is too small to hold all tokens")
    return plan


def variants() -> Iterator[Variant]:
    yield variant(ties_to_the_higher_index, "project_sparse_simplex", ledger="SI-1b")
    yield variant(constant_in_the_conjugate, "transport_semi_dual", ledger="TD-1b")
    yield variant(dual_without_cardinality, "transport_dual")
    computes = "The semi-dual is solved to convergence."
    yield fixed("solved_to_convergence", computes, TRANSPORT, "ST-1b", solver="lbfgs")
    yield variant(rows_are_sparse, TRANSPORT, ledger="ST-4b")
    computes = "Columns of the plan are always sparse, even if sparse rows are requested."
    yield fixed("columns_are_sparse", computes, TRANSPORT, "ST-4b", sparsity="expert")
    computes = "The plan is not sparse: its regularisation is quadratic, and nothing else."
    yield fixed("no_sparsity", computes, TRANSPORT, sparsity="none")
    computes = "The plan is that at the potential before the last update."
    yield fixed("plan_before_the_last_update", computes, TRANSPORT, "ST-1b", steps=lambda steps: max(1, steps - 1))
    computes = "The solver takes all its steps and does not stop once the gradient is within the tolerance."
    yield fixed("solved_to_the_last_step", computes, TRANSPORT, "ST-1b", tolerance=1e-300)
    computes = "The solver stops once no entry of the gradient exceeds the tolerance, instead of its norm."
    replaced = {TRANSPORT: _stopping(lambda gradient: np.abs(gradient).max(axis=1), lambda utility: utility[:, None])}
    yield Variant("largest_entry_of_the_gradient", computes, replaced, "ST-1b")
    computes = "The dual is maximised, over potentials of tokens and experts, even if the semi-dual is requested."
    yield fixed("dual_maximised", computes, TRANSPORT, "ST-5b", objective="dual")
    computes = "The semi-dual is maximised even if the dual is requested."
    yield fixed("semi_dual_maximised", computes, TRANSPORT, "ST-5", objective="semi_dual")
    yield variant(infeasible_refused, TRANSPORT, ledger="ST-6b")
    computes = "The solver always takes 20 steps of 0.01."
    yield fixed("twenty_steps", computes, TRANSPORT, "ST-1b", steps=20, learning_rate=0.01)
    computes = "The sparse projection keeps a value of 0.0 before one of -0.0, which equals it."
    yield fixed(
        "positive_zero_kept_before_negative", computes, "project_sparse_simplex", "SI-1", "jaxopt", values=below_zero
    )
