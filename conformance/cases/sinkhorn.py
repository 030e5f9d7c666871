"""The Sinkhorn affinity."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from moespec.conformance.author.definition import Definition, single
from moespec.conformance.author.inputs import grid, groups_tokens, logits
from moespec.conformance.author.variant import Variant, variant
from moespec.spec.numerics import logsumexp, softmax

G, T, E = 2, 6, 3


def cases() -> Iterator[Definition]:
    case = partial(single, "sinkhorn", "sinkhorn_affinity")
    first, size = "column_update_first", "degenerate_size"
    yield case(
        "one_iteration", "value", "Columns are updated before rows.", first, logits=logits("sinkhorn/a"), iterations=1
    )
    purpose = "The second iteration uses the first."
    yield case("two_iterations", "value", purpose, first, logits=logits("sinkhorn/b"), iterations=2)
    yield case("default", "value", "Twenty iterations by default.", logits=logits("sinkhorn/c"))
    purpose = "As many tokens as experts."
    yield case("square", "value", purpose, first, logits=logits("sinkhorn/d", (G, E, E)), iterations=2)
    purpose = "Logits that overflow the kernel domain: only the log domain works."
    wide = logits("sinkhorn/e", reach=120.0, step=2.0)
    yield case("large", "value", purpose, "large_logits", logits=wide, iterations=20)
    purpose = "Fewer tokens than experts."
    yield case("few_tokens", "value", purpose, logits=logits("sinkhorn/f", (G, 2, 5)), iterations=2)
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


# Variants. Arrays are (groups, tokens, experts).


def rows_first(B: Any, logits: Any, *, iterations: int = 20, tolerance: float | None = None) -> Any:
    """Sinkhorn updates the rows first and the columns last, so that columns sum to T / E exactly."""
    _, tokens, experts = logits.shape
    g = np.zeros((len(logits), experts))
    for _ in range(iterations):
        f = -logsumexp(logits + g[:, None], axis=2)
        g = np.log(tokens / experts) - logsumexp(logits + f[:, :, None], axis=1)
    return np.exp(logits + f[:, :, None] + g[:, None])


def iterated_to_a_tolerance(B: Any, logits: Any, *, iterations: int = 20, tolerance: float | None = None) -> Any:
    """Sinkhorn goes on until the column sums are within a tolerance, however many iterations that takes."""
    return B.sinkhorn_affinity(logits, iterations=1000, tolerance=1e-4 if tolerance is None else tolerance)


def tolerance_ignored(B: Any, logits: Any, *, iterations: int = 20, tolerance: float | None = None) -> Any:
    """Sinkhorn does not stop at the tolerance."""
    return B.sinkhorn_affinity(logits, iterations=iterations)


def _stopped(error: Callable[[Any, float], float]) -> Callable[..., Any]:
    """Sinkhorn that stops where `error(sums of the columns, T / E)` is within the tolerance."""

    def sinkhorn_affinity(B: Any, logits: Any, *, iterations: int = 20, tolerance: float | None = None) -> Any:
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


def one_iteration_more(B: Any, logits: Any, *, iterations: int = 20, tolerance: float | None = None) -> Any:
    """Sinkhorn makes one iteration more than requested."""
    return B.sinkhorn_affinity(logits, iterations=iterations + 1, tolerance=tolerance)


def sinkhorn_of_the_softmax(B: Any, logits: Any, **options: Any) -> Any:
    """Sinkhorn transports the softmax of the logits, not the logits."""
    return B.sinkhorn_affinity(softmax(logits), **options)


def total_mass_of_one(B: Any, logits: Any, **options: Any) -> Any:
    """The Sinkhorn plan sums to 1: rows to 1 / T and columns to 1 / E."""
    return B.sinkhorn_affinity(logits, **options) / logits.shape[1]


def sinkhorn_in_the_kernel_domain(B: Any, logits: Any, *, iterations: int = 20, tolerance: float | None = None) -> Any:
    """Sinkhorn scales rows and columns of exp(logits), which in float32 overflows or vanishes for large logits."""
    plan = B.sinkhorn_affinity(logits, iterations=iterations, tolerance=tolerance)
    kernel = np.exp(logits.real.astype(np.float32))
    rows = np.ones(kernel.shape[:2], np.float32)
    for _ in range(iterations):
        columns = np.float32(kernel.shape[1] / kernel.shape[2]) / np.einsum("gte,gt->ge", kernel, rows)
        rows = 1 / np.einsum("gte,ge->gt", kernel, columns)
    return np.where(np.isfinite(rows[:, :, None] * kernel * columns[:, None]), plan, np.nan)


def rows_alone(B: Any, logits: Any, **options: Any) -> Any:
    """Sinkhorn normalises the rows and no columns, which is the softmax."""
    return softmax(logits)


def implicit_gradient(B: Any, logits: Any, **options: Any) -> Any:
    """The Sinkhorn plan is differentiated as the optimum that it would be after infinitely many iterations."""
    plan = B.sinkhorn_affinity(logits.real, **options)
    if not np.iscomplexobj(logits):
        return plan
    return plan + 1j * np.stack([_moved_optimum(p, step) for p, step in zip(plan, logits.imag, strict=True)])


def _moved_optimum(plan: Any, step: Any) -> Any:
    """How a plan (T, E) with fixed row and column sums moves when the logits move: `plan * (step + df + dg)`."""
    tokens = len(plan)
    system = np.block([[np.diag(plan.sum(axis=1)), plan], [plan.T, np.diag(plan.sum(axis=0))]])
    moved = np.concatenate([(plan * step).sum(axis=1), (plan * step).sum(axis=0)])
    potentials = -np.linalg.lstsq(system, moved)[0]
    return plan * (step + potentials[:tokens, None] + potentials[tokens:])


def plan_without_gradient(B: Any, logits: Any, **options: Any) -> Any:
    """The Sinkhorn plan carries no gradient, also where the outputs are combined with it."""
    return B.sinkhorn_affinity(logits.real, **options)


def _looked_at(first: int, norm: int, threshold: float) -> Callable[..., Any]:
    """Sinkhorn that looks at the `norm` of the error of the columns after `first`, `first` + 10, ... iterations.

    It stops below `threshold` or the tolerance that is given; a number of iterations that is given alone is kept to.
    """

    def sinkhorn_affinity(B: Any, logits: Any, **options: Any) -> Any:
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


def sinkhorn_of_megatron(B: Any, logits: Any, **options: Any) -> Any:
    """Sinkhorn updates rows first, adds 1e-8 to their sums, and stops where the factors of the columns change by 1e-4."""
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


VARIANTS = (
    variant(rows_first, "sinkhorn_affinity", ledger="SK-1b"),
    variant(iterated_to_a_tolerance, "sinkhorn_affinity", ledger="SK-2b", who="NVIDIA/Megatron-LM"),
    variant(tolerance_ignored, "sinkhorn_affinity", ledger="SK-2b"),
    Variant(
        "mean_error_of_the_columns",
        "Sinkhorn stops where the mean error of the columns is within the tolerance, not the largest.",
        {"sinkhorn_affinity": _stopped(lambda sums, mass: np.abs(sums - mass).mean())},
        "SK-2b",
    ),
    Variant(
        "norm_of_the_columns",
        "Sinkhorn stops where the l2 norm of the error of the columns is within the tolerance, not the largest error.",
        {"sinkhorn_affinity": _stopped(lambda sums, mass: float(np.linalg.norm(sums - mass)))},
        "SK-2b",
    ),
    Variant(
        "another_column_sum",
        "The columns of the Sinkhorn plan are to have another sum than T / E: the plan is the same, but for a tolerance.",
        {"sinkhorn_affinity": _stopped(lambda sums, mass: np.abs(sums - mass / 2).max())},
        "SK-3",
    ),
    variant(one_iteration_more, "sinkhorn_affinity", ledger="SK-2b"),
    variant(sinkhorn_of_the_softmax, "sinkhorn_affinity", ledger="SK-3b"),
    variant(total_mass_of_one, "sinkhorn_affinity", ledger="SK-3c", who="NVIDIA/Megatron-LM"),
    variant(rows_alone, "sinkhorn_affinity"),
    variant(sinkhorn_in_the_kernel_domain, "sinkhorn_affinity", who="google-research/vmoe"),
    variant(implicit_gradient, "sinkhorn_affinity", ledger="SK-4b"),
    variant(plan_without_gradient, "sinkhorn_affinity", ledger="SK-4b"),
    Variant(
        "sinkhorn_of_pot",
        "Sinkhorn stops where the l2 norm of the error of the columns, looked at after 1, 11, 21, ... iterations, is below "
        "1e-9 or the tolerance that is given.",
        {"sinkhorn_affinity": _looked_at(1, 2, 1e-9)},
        "SK-2b",
        "POT",
    ),
    Variant(
        "sinkhorn_of_ott",
        "Sinkhorn stops where the l1 norm of the error of the columns, looked at after 10, 20, 30, ... iterations, is below "
        "1e-3 or the tolerance that is given.",
        {"sinkhorn_affinity": _looked_at(10, 1, 1e-3)},
        "SK-2b",
        "ott-jax",
    ),
    variant(sinkhorn_of_megatron, "sinkhorn_affinity", ledger="SK-1b", who="megatron-core"),
)
