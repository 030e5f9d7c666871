"""The routers that JAX and torch share, composed of a backend's functions on arrays with a leading groups axis.

    route(B, params, tokens, options, *, noise=None, train=False)

`B` is the backend. `moespec.spec.routers` defines each router in separate code that no compiled backend runs. The conformance vectors come
from `moespec.spec.routers`, so a composition that confuses two scores, drops a loss or forgets an option fails the conformance suite.
"""

from collections.abc import Callable, Mapping
from copy import copy
from functools import partial
from typing import Any

from moespec.backends.routers import assignments, expert_choice, plans, token_choice
from moespec.spec.errors import ConfigError
from moespec.spec.routers import ROUTERS, Router, Routers
from moespec.spec.routing import RouterOutput, State

__all__ = ["composed"]

ROUTES: Mapping[str, Callable[..., RouterOutput]] = {
    "base": assignments.base,
    "batch_expert_choice": expert_choice.batch_expert_choice,
    "cosine_token_choice": token_choice.cosine_token_choice,
    "dselect_k": assignments.dselect_k,
    "gshard": token_choice.gshard,
    "hash": assignments.hash,
    "hierarchical_top_k": token_choice.hierarchical_top_k,
    "image_choice": token_choice.image_choice,
    "importance_score": token_choice.importance_score,
    "mixture_of_depths": expert_choice.mixture_of_depths,
    "noisy_top_k": token_choice.noisy_top_k,
    "relu": expert_choice.relu,
    "s_base": plans.s_base,
    "sigmoid_token_choice": token_choice.sigmoid_token_choice,
    "sinkhorn_expert_choice": plans.sinkhorn_expert_choice,
    "sinkhorn_token_choice": plans.sinkhorn_token_choice,
    "soft_moe": assignments.soft_moe,
    "softmax_expert_choice": expert_choice.softmax_expert_choice,
    "softmax_token_choice": token_choice.softmax_token_choice,
    "sparsity_constrained_expert_choice": plans.sparsity_constrained_expert_choice,
    "sparsity_constrained_token_choice": plans.sparsity_constrained_token_choice,
    "strictly_balanced": expert_choice.strictly_balanced,
    "switch": token_choice.switch,
    "variable_budget": expert_choice.variable_budget,
}

UPDATES: Mapping[str, Callable[..., State]] = {
    "batch_expert_choice": expert_choice.batch_expert_choice_update,
    "relu": expert_choice.relu_update,
    "sigmoid_token_choice": token_choice.sigmoid_token_choice_update,
    "variable_budget": expert_choice.variable_budget_update,
}


def composed(B: Any) -> Routers:
    """Returns the routers by name, bound to `B`, which is a backend or a module with the functions of a backend."""

    def bound(router: Router[Any], compose: Any, update: Any) -> Router[Any]:
        made = copy(router)  # `replace` would check all functions again, which takes long
        vars(made)["route"] = router._checked_route(partial(compose, B))
        if update:
            vars(made)["update"] = router._checked_update(partial(update, B))
        return made

    def own(_: str, router: Router[Any]) -> Router[Any]:
        if router.compose is None or (router.stateful and router.compose_update is None):
            missing = "compose" if router.compose is None else "compose_update"
            raise ConfigError(f"router {router.name!r}: its Router has no {missing}, which JAX and torch need")
        return bound(router, router.compose, router.compose_update)

    return Routers({name: bound(router, ROUTES[name], UPDATES.get(name)) for name, router in ROUTERS.items()}, own)
