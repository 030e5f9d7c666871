"""Cases of the router `sparsity_constrained_expert_choice`."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from moespec.conformance.author.definition import Definition
from moespec.conformance.author.routers import NORMAL, common, kernel_of, output_gradient, router_case

NAME = "sparsity_constrained_expert_choice"
T, E, D = 6, 3, 4


def cases() -> Iterator[Definition]:
    yield from common(NAME, combine_from_clean_logits=True, sizes=(T, E, 3))
    small: dict[str, Any] = {"groups": 1, "sizes": (4, 2, 3)}
    purpose = "By default the noise that is given is not used."
    yield router_case(NAME, "noise_not_requested", "value", purpose, "noise_inside", noise=NORMAL, **small)
    yield output_gradient(partial(router_case, NAME), sizes=(4, 3, 3))
    purpose = "Half as many slots as tokens."
    yield router_case(NAME, "half", "value", purpose, "uncovered_token", capacity_factor=0.5)
    purpose = "A peaked softmax leaves zeros in the plan, whose slots are filled."
    yield _peaked("zero_plan", purpose, "zero_score_slots")
    purpose = "The same slots left empty."
    yield _peaked("zero_plan_dropped", purpose, "zero_score_slots", "empty_slot", drop_zero_plan=True)
    purpose = "Five steps of the solver."
    yield router_case(NAME, "few_steps", "value", purpose, "solver_steps", transport_steps=5)
    purpose = "Five steps of the dual, over potentials of tokens and experts; the weights are its plan."
    dual: dict[str, Any] = {"transport_objective": "dual", "transport_steps": 5, "combine_with": "plan", **small}
    yield router_case(NAME, "dual", "value", purpose, "solver_steps", **dual)
    purpose, flag = "Ablation: combine with the plan.", "combine_with_plan"
    params = kernel_of(f"routers/{NAME}/combine_plan/kernel/0", 3, 2)
    yield router_case(NAME, "combine_plan", "value", purpose, flag, params=params, combine_with="plan", **small)


def _peaked(name: str, purpose: str, *flags: str, **options: Any) -> Definition:
    """Returns a case in which an expert has 4 slots but the plan is positive for fewer tokens."""
    params = kernel_of(f"routers/{NAME}/{name}/kernel", D, E, reach=6.0)
    case = partial(router_case, NAME, name, "value", purpose, *flags, params=params, capacity_factor=2.0)
    return case(accept=lambda plan: bool(((plan > 0).sum(axis=0) < 2 * T // E).any()), **options)
