"""Other logits, noise, softmax and Sinkhorn affinities. Arrays are (groups, tokens, experts)."""

from typing import Any

import numpy as np

from moespec.conformance.draw import to_bfloat16
from moespec.conformance.mutants.definition import wrong
from moespec.spec.numerics import logsumexp, softmax

__all__ = ["MUTANTS"]

OVERFLOW = 88.7
"""Float32 overflows in the exponential of larger numbers."""


def logits_are_cosines(B: Any, tokens: Any, kernel: Any) -> Any:
    """Logits are cosines: tokens and columns of the kernel are divided by their norms."""
    logits = B.router_logits(tokens, kernel)
    norms = np.sqrt(np.sum(tokens * tokens, axis=2))[..., None] * np.sqrt(np.sum(kernel * kernel, axis=0))
    return logits / (norms + 1e-12)


def softmax_over_tokens(B: Any, logits: Any) -> Any:
    """The softmax runs over the tokens, not over the experts."""
    B.softmax_affinity(logits)
    return softmax(logits, axis=1)


def sigmoid_affinity(B: Any, logits: Any) -> Any:
    """The affinity is the sigmoid of the logit, expert by expert, not the softmax."""
    B.softmax_affinity(logits)
    return 1 / (1 + np.exp(-logits))


def maximum_not_subtracted(B: Any, logits: Any) -> Any:
    """The softmax does not subtract the maximum, so that large logits overflow float32."""
    scores = B.softmax_affinity(logits)
    return np.where(np.max(logits.real, axis=2, keepdims=True) > OVERFLOW, np.nan, scores)


def affinity_in_bfloat16(B: Any, logits: Any) -> Any:
    """The softmax is computed in bfloat16."""
    return to_bfloat16(B.softmax_affinity(logits).real).astype(np.float64)


def noise_not_scaled(B: Any, logits: Any, noise: Any, *, multiplier: float = 1.0) -> Any:
    """The noise is not divided by the number of experts."""
    return B.add_gating_noise(logits, noise, multiplier=multiplier * logits.shape[2])


def noise_variance(B: Any, logits: Any, noise: Any, *, multiplier: float = 1.0) -> Any:
    """The multiplier over the number of experts is the variance of the noise."""
    B.add_gating_noise(logits, noise, multiplier=multiplier)
    return B.add_gating_noise(logits, noise, multiplier=np.sqrt(multiplier * logits.shape[2]))


def multiplier_of_zero_is_one(B: Any, logits: Any, noise: Any, *, multiplier: float = 1.0) -> Any:
    """A multiplier of 0 counts as not given, and is 1."""
    return B.add_gating_noise(logits, noise, multiplier=multiplier or 1.0)


def noise_in_evaluation(B: Any, logits: Any, noise: Any, *, multiplier: float = 1.0) -> Any:
    """Noise is added also where none is given."""
    if noise is None:
        noise = np.random.default_rng(0).standard_normal(logits.shape)
    return B.add_gating_noise(logits, noise, multiplier=multiplier)


def rows_first(B: Any, logits: Any, *, iterations: int = 20, tolerance: float | None = None) -> Any:
    """Sinkhorn updates the rows first and the columns last, so that columns sum to T / E exactly."""
    B.sinkhorn_affinity(logits, iterations=iterations, tolerance=tolerance)
    _, tokens, experts = logits.shape
    g = np.zeros((len(logits), experts))
    for _ in range(iterations):
        f = -logsumexp(logits + g[:, None], axis=2)
        g = np.log(tokens / experts) - logsumexp(logits + f[:, :, None], axis=1)
    return np.exp(logits + f[:, :, None] + g[:, None])


def iterated_to_a_tolerance(B: Any, logits: Any, *, iterations: int = 20, tolerance: float | None = None) -> Any:
    """Sinkhorn goes on until the column sums are within a tolerance, however many iterations that takes."""
    B.sinkhorn_affinity(logits, iterations=iterations, tolerance=tolerance)
    return B.sinkhorn_affinity(logits, iterations=1000, tolerance=1e-4 if tolerance is None else tolerance)


def tolerance_ignored(B: Any, logits: Any, *, iterations: int = 20, tolerance: float | None = None) -> Any:
    """Sinkhorn does not stop at the tolerance."""
    B.sinkhorn_affinity(logits, iterations=1, tolerance=tolerance)
    return B.sinkhorn_affinity(logits, iterations=iterations)


def one_iteration_more(B: Any, logits: Any, *, iterations: int = 20, tolerance: float | None = None) -> Any:
    """Sinkhorn makes one iteration more than it is asked for."""
    B.sinkhorn_affinity(logits, iterations=iterations, tolerance=tolerance)
    return B.sinkhorn_affinity(logits, iterations=iterations + 1, tolerance=tolerance)


def sinkhorn_of_the_softmax(B: Any, logits: Any, **options: Any) -> Any:
    """Sinkhorn transports the softmax of the logits, not the logits."""
    B.sinkhorn_affinity(logits, **options)
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
    B.sinkhorn_affinity(logits, **options)
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
    """The Sinkhorn plan carries no gradient, also where it is combined with."""
    return B.sinkhorn_affinity(logits.real, **options)


MUTANTS = (
    wrong(logits_are_cosines, "router_logits"),
    wrong(softmax_over_tokens, "softmax_affinity", ledger="EC-4"),
    wrong(sigmoid_affinity, "softmax_affinity"),
    wrong(maximum_not_subtracted, "softmax_affinity"),
    wrong(affinity_in_bfloat16, "softmax_affinity"),
    wrong(noise_not_scaled, "add_gating_noise"),
    wrong(noise_variance, "add_gating_noise", ledger="SA-2"),
    wrong(multiplier_of_zero_is_one, "add_gating_noise"),
    wrong(noise_in_evaluation, "add_gating_noise"),
    wrong(rows_first, "sinkhorn_affinity", ledger="SK-1"),
    wrong(iterated_to_a_tolerance, "sinkhorn_affinity", ledger="SK-2", who="NVIDIA/Megatron-LM"),
    wrong(tolerance_ignored, "sinkhorn_affinity", ledger="SK-2"),
    wrong(one_iteration_more, "sinkhorn_affinity", ledger="SK-2"),
    wrong(sinkhorn_of_the_softmax, "sinkhorn_affinity", ledger="SK-3"),
    wrong(total_mass_of_one, "sinkhorn_affinity", ledger="SK-3", who="NVIDIA/Megatron-LM"),
    wrong(rows_alone, "sinkhorn_affinity"),
    wrong(sinkhorn_in_the_kernel_domain, "sinkhorn_affinity", who="google-research/vmoe"),
    wrong(implicit_gradient, "sinkhorn_affinity", ledger="SK-4"),
    wrong(plan_without_gradient, "sinkhorn_affinity", ledger="SK-4"),
)
"""The mutants of this module."""
