"""Other layers: dispatch, experts, combine, and metrics. Tokens are (groups, tokens, width)."""

from collections.abc import Callable
from typing import Any

import numpy as np

from moespec.conformance.mutants.definition import wrong

__all__ = ["MUTANTS"]

Experts = Callable[[Any], Any]


def _layer(dispatch: Any, combine: Any, tokens: Any, experts: Experts) -> Any:
    """Dispatch, experts and combine of tensors (groups, tokens, experts, capacity)."""
    return np.einsum("gtec,gecd->gtd", combine, experts(np.einsum("gtec,gtd->gecd", dispatch, tokens)))


def dropped_tokens_pass(B: Any, tokens: Any, routing: Any, experts: Experts) -> Any:
    """A token without a slot gets itself, not 0."""
    result = B.moe_layer(tokens, routing, experts)
    lost = (routing.dense().dispatch == 0).all(axis=(2, 3))
    passed = np.zeros_like(result)
    width = min(tokens.shape[2], result.shape[2])
    passed[..., :width] = tokens[..., :width]
    return np.where(lost[..., None], passed, result)


def empty_slots_reach_the_last_token(B: Any, tokens: Any, routing: Any, experts: Experts) -> Any:
    """What an expert returns for an empty slot is added to the last token."""
    B.moe_layer(tokens, routing, experts)
    dispatch, combine = routing.dense()
    combine = combine.copy()
    combine[:, -1] += (dispatch == 0).all(axis=1)
    return _layer(dispatch, combine, tokens, experts)


def weights_before_experts(B: Any, tokens: Any, routing: Any, experts: Experts) -> Any:
    """The combine weights multiply what enters an expert, not what leaves it."""
    right = B.moe_layer(tokens, routing, experts)
    dispatch, combine = routing.dense()
    return right if isinstance(routing, B.SoftRouting) else _layer(combine, dispatch, tokens, experts)


def outputs_not_weighted(B: Any, tokens: Any, routing: Any, experts: Experts) -> Any:
    """The outputs of the slots of a token are added, without weights."""
    right = B.moe_layer(tokens, routing, experts)
    dispatch, _ = routing.dense()
    return right if isinstance(routing, B.SoftRouting) else _layer(dispatch, dispatch, tokens, experts)


def outputs_averaged(B: Any, tokens: Any, routing: Any, experts: Experts) -> Any:
    """The output of a token is divided by the sum of its combine weights."""
    right = B.moe_layer(tokens, routing, experts)
    total = routing.dense().combine.sum(axis=(2, 3))[..., None]
    return right / np.where(total == 0, 1, total)


def straight_through_dispatch(B: Any, tokens: Any, routing: Any, experts: Experts) -> Any:
    """The dispatch of a sparse routing has the gradient of its combine weights."""
    right = B.moe_layer(tokens, routing, experts)
    dispatch, combine = routing.dense()
    if isinstance(routing, B.SoftRouting):
        return right
    return _layer(dispatch * (1 + combine - combine.real), combine, tokens, experts)


def inputs_without_gradient(B: Any, tokens: Any, routing: Any, experts: Experts) -> Any:
    """No gradient flows from the experts to the tokens."""
    return B.moe_layer(tokens.real, routing, experts)


def one_expert_for_all(B: Any, inputs: Any, params: Any, *, gelu: str = "tanh", **used: Any) -> Any:
    """All experts have the parameters of the first."""
    B.expert_mlp(inputs, params, gelu=gelu, **used)
    first = {name: np.broadcast_to(array[:1], array.shape) for name, array in params.items()}
    return B.expert_mlp(inputs, first, gelu=gelu, **used)


def idle_experts_run(B: Any, inputs: Any, params: Any, *, gelu: str = "tanh", used: Any = None) -> Any:
    """Experts that nobody uses are run, and their output is that of empty slots."""
    B.expert_mlp(inputs, params, gelu=gelu, used=used)
    return B.expert_mlp(inputs, params, gelu=gelu)


def experts_without_biases(B: Any, inputs: Any, params: Any, *, gelu: str = "tanh", **used: Any) -> Any:
    """The experts have no biases."""
    B.expert_mlp(inputs, params, gelu=gelu, **used)
    bare = {name: np.zeros_like(array) if name.startswith("b") else array for name, array in params.items()}
    return B.expert_mlp(inputs, bare, gelu=gelu, **used)


def experts_with_exact_gelu(B: Any, inputs: Any, params: Any, *, gelu: str = "tanh", **used: Any) -> Any:
    """The experts use the exact GELU, whatever form is asked for."""
    B.expert_mlp(inputs, params, gelu=gelu, **used)
    return B.expert_mlp(inputs, params, gelu="erf", **used)


def experts_with_approximate_gelu(B: Any, inputs: Any, params: Any, *, gelu: str = "tanh", **used: Any) -> Any:
    """The experts use the tanh approximation of GELU, whatever form is asked for."""
    B.expert_mlp(inputs, params, gelu=gelu, **used)
    return B.expert_mlp(inputs, params, **used)


def load_of_filled_slots(B: Any, routing: Any) -> Any:
    """The load is a share of the filled slots, not of the tokens."""
    found = B.routing_metrics(routing)
    return {**found, "load": found["load"] / max(np.sum(found["load"]), 1e-12)}


def coverage_of_slots(B: Any, routing: Any) -> Any:
    """The coverage is the share of the slots that are filled, not of the tokens that have one."""
    filled = np.mean((routing.dense().dispatch != 0).any(axis=1), dtype=np.float64)
    return {**B.routing_metrics(routing), "coverage": filled, "dropped": 1 - filled}


def entropy_in_bits(B: Any, routing: Any) -> Any:
    """The entropy is in bits."""
    found = B.routing_metrics(routing)
    return {**found, "entropy": found["entropy"] / np.log(2)}


MUTANTS = (
    wrong(dropped_tokens_pass, "moe_layer", ledger="LA-2"),
    wrong(empty_slots_reach_the_last_token, "moe_layer"),
    wrong(weights_before_experts, "moe_layer"),
    wrong(outputs_not_weighted, "moe_layer"),
    wrong(outputs_averaged, "moe_layer"),
    wrong(straight_through_dispatch, "moe_layer", who="lucidrains/st-moe-pytorch"),
    wrong(inputs_without_gradient, "moe_layer"),
    wrong(one_expert_for_all, "expert_mlp"),
    wrong(idle_experts_run, "expert_mlp"),
    wrong(experts_without_biases, "expert_mlp"),
    wrong(experts_with_exact_gelu, "expert_mlp", ledger="LA-1"),
    wrong(experts_with_approximate_gelu, "expert_mlp", ledger="LA-1"),
    wrong(load_of_filled_slots, "routing_metrics"),
    wrong(coverage_of_slots, "routing_metrics"),
    wrong(entropy_in_bits, "routing_metrics"),
)
"""The mutants of this module."""
