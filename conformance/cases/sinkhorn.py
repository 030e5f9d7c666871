"""Cases of the Sinkhorn affinity."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, single
from moespec.conformance.author.inputs import grid, groups_tokens, logits
from moespec.conformance.author.variant import Spec, Variant, fixed, scaled, variant
from moespec.spec.numerics import logsumexp, softmax

G, T, E = 2, 6, 3
PLAN = "sinkhorn_affinity"


def cases() -> Iterator[Definition]:
    case = partial(single, "sinkhorn", PLAN)
    first, size = "column_update_first", "degenerate_size"
    purpose = "Columns are updated before rows."
    yield case("one_iteration", "value", purpose, first, logits=logits("sinkhorn/a"), iterations=1)
    yield case("default", "value", "Twenty iterations by default.", logits=logits("sinkhorn/c"))
    purpose = "As many tokens as experts."
    yield case("square", "value", purpose, first, logits=logits("sinkhorn/d", (G, E, E)), iterations=2)
    purpose = "Logits that overflow the kernel domain: only the log domain works."
    wide = logits("sinkhorn/e", reach=120.0, step=2.0)
    yield case("large", "value", purpose, "large_logits", logits=wide, iterations=20)
    purpose = "Stops after the iteration whose column sums are within the tolerance, each group for itself."
    unlike = groups_tokens(np.stack([grid("sinkhorn/g", (T, E), reach=0.5), grid("sinkhorn/h", (T, E), reach=4.0)]))
    yield case("tolerance", "value", purpose, logits=unlike, tolerance=0.02)
    purpose = "No column may be further off than the tolerance, also where their mean error is within it."
    wide = logits("sinkhorn/stop/10", (1, T, 5), reach=4.0)
    yield case("tolerance_largest", "value", purpose, logits=wide, tolerance=0.03125)
    purpose = "A tolerance that any plan is within: one iteration, whatever the columns are to sum to."
    yield case("tolerance_loose", "value", purpose, logits=logits("sinkhorn/m", (1, T, E)), tolerance=64.0)
    yield case("equal", "tie", "Equal logits give 1/E.", logits=groups_tokens(np.zeros((G, T, E))))
    yield case("one_expert", "degenerate", "One expert gets 1.", size, logits=logits("sinkhorn/i", (G, T, 1)))
    yield case("one_token", "degenerate", "One token.", size, logits=logits("sinkhorn/j", (1, 1, E)))
    narrow = logits("sinkhorn/k", reach=2.0)
    yield case("gradient", "gradient", "Through one iteration.", logits=narrow, iterations=1)
    narrow = logits("sinkhorn/l", reach=2.0)
    yield case("gradient_unrolled", "gradient", "Through twenty iterations.", logits=narrow)


def rows_first(B: Spec, logits: Array, *, iterations: int = 20, tolerance: float | None = None) -> Array:
    """Sinkhorn updates the rows first and the columns last, so columns sum to exactly T / E."""
    _, tokens, experts = logits.shape
    g = np.zeros((len(logits), experts))
    for _ in range(iterations):
        f = -logsumexp(logits + g[:, None], axis=2)
        g = np.log(tokens / experts) - logsumexp(logits + f[:, :, None], axis=1)
    return np.exp(logits + f[:, :, None] + g[:, None])


def _stopped(error: Callable[[Any, float], float]) -> Callable[..., Any]:
    """Returns a Sinkhorn function that stops once `error(column sums, T / E)` is within the tolerance."""

    def sinkhorn_affinity(B: Spec, logits: Array, *, iterations: int = 20, tolerance: float | None = None) -> Any:
        plan = B.sinkhorn_affinity(logits, iterations=iterations, tolerance=tolerance)
        if tolerance is None:
            return plan
        plans = []
        for group in logits:
            for count in range(1, iterations + 1):
                plan = B.sinkhorn_affinity(group[None], iterations=count)[0]
                if error(plan.real.sum(axis=0), logits.shape[1] / logits.shape[2]) <= tolerance:
                    break
            plans.append(plan)
        return np.stack(plans)

    return sinkhorn_affinity


def sinkhorn_in_the_kernel_domain(
    B: Spec, logits: Array, *, iterations: int = 20, tolerance: float | None = None
) -> Array:
    """Sinkhorn scales rows and columns of exp(logits), which overflows or underflows in float32 for large logits."""
    plan = B.sinkhorn_affinity(logits, iterations=iterations, tolerance=tolerance)
    kernel = np.exp(logits.real.astype(np.float32))
    rows = np.ones(kernel.shape[:2], np.float32)
    for _ in range(iterations):
        columns = np.float32(kernel.shape[1] / kernel.shape[2]) / np.einsum("gte,gt->ge", kernel, rows)
        rows = 1 / np.einsum("gte,ge->gt", kernel, columns)
    return np.where(np.isfinite(rows[:, :, None] * kernel * columns[:, None]), plan, np.nan)


def rows_alone(B: Spec, logits: Array, **options: Any) -> Array:
    """Sinkhorn normalises only the rows, so the plan is the softmax."""
    return softmax(logits)


def implicit_gradient(B: Spec, logits: Array, **options: Any) -> Array:
    """The Sinkhorn plan is differentiated as the optimum reached after infinitely many iterations."""
    plan = B.sinkhorn_affinity(logits.real, **options)
    if not np.iscomplexobj(logits):
        return plan
    return plan + 1j * np.stack([_moved_optimum(p, step) for p, step in zip(plan, logits.imag, strict=True)])


def _moved_optimum(plan: Array, step: Array) -> Any:
    """Returns the first-order change of a plan (T, E) with fixed row and column sums if the logits change by `step`."""
    tokens = len(plan)
    system = np.block([[np.diag(plan.sum(axis=1)), plan], [plan.T, np.diag(plan.sum(axis=0))]])
    moved = np.concatenate([(plan * step).sum(axis=1), (plan * step).sum(axis=0)])
    potentials = -np.linalg.lstsq(system, moved)[0]
    return plan * (step + potentials[:tokens, None] + potentials[tokens:])


def _looked_at(first: int, norm: int, threshold: float) -> Callable[..., Any]:
    """Returns a Sinkhorn function that checks the norm (of order `norm`) of the column error after `first`, `first` + 10, ... iterations.

    It stops once the norm is below the call's tolerance (default: `threshold`). A call with `iterations` and no tolerance skips the checks.
    """

    def sinkhorn_affinity(B: Spec, logits: Array, **options: Any) -> Any:
        right = B.sinkhorn_affinity(logits, **options)
        if "iterations" in options and options.get("tolerance") is None:
            return right
        mass = logits.shape[1] / logits.shape[2]
        below = options.get("tolerance") or threshold
        plans = []
        for group in logits:
            for iterations in range(first, 1000, 10):
                plan = B.sinkhorn_affinity(group[None], iterations=iterations)[0]
                if np.linalg.norm(plan.real.sum(axis=0) - mass, norm) < below:
                    break
            plans.append(plan)
        return np.stack(plans)

    return sinkhorn_affinity


def sinkhorn_of_megatron(B: Spec, logits: Array, **options: Any) -> Array:
    """Sinkhorn updates rows first, adds 1e-8 to row and column sums, and stops once column factors change by at most 1e-4 on average."""
    right = B.sinkhorn_affinity(logits, **options)
    if options.get("iterations") is not None:
        return right
    _, tokens, experts = logits.shape
    plans = []
    for kernel in np.exp(logits):
        columns, change = np.ones(experts), np.inf
        while change > (options.get("tolerance") or 1e-4):
            rows = 1 / (tokens * ((kernel * columns).sum(axis=1) + 1e-8))
            before, columns = columns, 1 / (experts * ((kernel * rows[:, None]).sum(axis=0) + 1e-8))
            change = np.mean(np.abs((before - columns).real))
        plans.append(tokens * kernel * columns * rows[:, None])
    return np.stack(plans)


def variants() -> Iterator[Variant]:
    yield variant(rows_first, PLAN, ledger="SK-1b")
    computes = "Sinkhorn goes on until the column sums are within a tolerance, however many iterations that takes."
    enough: dict[str, Any] = {"iterations": 1000, "tolerance": lambda tolerance: tolerance or 1e-4}
    yield fixed("iterated_to_a_tolerance", computes, PLAN, "SK-2b", "NVIDIA/Megatron-LM", **enough)
    computes = "Sinkhorn does not stop at the tolerance."
    yield fixed("tolerance_ignored", computes, PLAN, "SK-2b", tolerance=None)
    computes = "Sinkhorn stops once the mean column error, not the largest, is within the tolerance."
    replaced = {PLAN: _stopped(lambda sums, mass: np.abs(sums - mass).mean())}
    yield Variant("mean_error_of_the_columns", computes, replaced, "SK-2b")
    computes = "Sinkhorn stops once the l2 norm of the column errors, not the largest error, is within the tolerance."
    replaced = {PLAN: _stopped(lambda sums, mass: float(np.linalg.norm(sums - mass)))}
    yield Variant("norm_of_the_columns", computes, replaced, "SK-2b")
    computes = "The columns of the Sinkhorn plan are to have another sum than T / E: the plan is the same, but for a tolerance."
    replaced = {PLAN: _stopped(lambda sums, mass: np.abs(sums - mass / 2).max())}
    yield Variant("another_column_sum", computes, replaced, "SK-3")
    computes = "Sinkhorn makes one iteration more than requested."
    yield fixed("one_iteration_more", computes, PLAN, "SK-2b", iterations=lambda iterations: iterations + 1)
    computes = "Sinkhorn transports the softmax of the logits, not the logits."
    yield fixed("sinkhorn_of_the_softmax", computes, PLAN, "SK-3b", logits=softmax)
    computes = "The Sinkhorn plan sums to 1: rows to 1 / T and columns to 1 / E."
    mass: dict[str, Any] = {PLAN: lambda logits, **_: 1 / logits.shape[1]}
    yield scaled("total_mass_of_one", computes, "SK-3c", "NVIDIA/Megatron-LM", **mass)
    yield variant(rows_alone, PLAN)
    yield variant(sinkhorn_in_the_kernel_domain, PLAN, who="google-research/vmoe")
    yield variant(implicit_gradient, PLAN, ledger="SK-4b")
    computes = "The Sinkhorn plan carries no gradient even if the outputs are combined with it."
    yield fixed("plan_without_gradient", computes, PLAN, "SK-4b", logits=np.real)
    for name, who, first, norm, threshold in (("pot", "POT", 1, 2, "1e-9"), ("ott", "ott-jax", 10, 1, "1e-3")):
        computes = (
            f"Sinkhorn stops where the l{norm} norm of the error of the columns, looked at after {first}, {first + 10}, "
            f"{first + 20}, ... iterations, is below {threshold} or the tolerance that is given."
        )
        replaced = {PLAN: _looked_at(first, norm, float(threshold))}
        yield Variant(f"sinkhorn_of_{name}", computes, replaced, "SK-2b", who)
    yield variant(sinkhorn_of_megatron, PLAN, ledger="SK-1b", who="megatron-core")
