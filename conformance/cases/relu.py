"""Cases of ReLU routing: gates, their loss, the excess of active gates, the penalty, and the router `relu`."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, single, tensor
from moespec.conformance.author.inputs import groups_tokens, logits
from moespec.conformance.author.routers import LAYER, router_case
from moespec.conformance.author.variant import Route, Spec, Variant, rerouted, variant
from moespec.conformance.format import Tensor
from moespec.spec.routing import RouterOutput

NAME, PARTS, FLAG = "relu", "relu_routing", "sparsity_penalty"
GATES, LOSS, EXCESS, PENALTY = "relu_affinity", "relu_loss", "excess_gates", "renewed_penalty"


def _scalar(value: float) -> Tensor:
    return tensor(np.float32(value), "")


def cases() -> Iterator[Definition]:
    yield from _parts()
    case = partial(router_case, NAME, groups=2)
    penalty = {"penalty": _scalar(0.25)}
    purpose = "Training: the loss with the penalty of the state, which is renewed."
    yield case("too_dense", "value", purpose, "generated_code", FLAG, train=True, state=penalty, penalty_multiplier=1.5)
    purpose = "Three experts should have a token, which fewer have; the penalty falls by the default."
    yield case("too_sparse", "value", purpose, FLAG, train=True, state=penalty, choices=3)
    purpose = "An expert with a capacity keeps its largest gates; the factor of evaluation, rounded, is another."
    few: dict[str, Any] = {"capacity_factor": 0.5, "multiple_of": 2, "state": penalty}
    yield case("capacity", "overflow", purpose, "capacity_rounding", train=True, **few)
    few |= {"slots_per_expert": 5, "eval_capacity_factor": 1.25, "multiple_of": 1, "rounding": "round"}
    yield case("evaluation_factor", "overflow", purpose, "evaluation_capacity", train=False, **few)
    del few["eval_capacity_factor"]
    yield case("slots", "overflow", "Two slots.", "capacity_rounding", train=False, **{**few, "slots_per_expert": 2})
    yield case("zero_kernel", "tie", "No logit is above 0.", "empty_slot", zero=True, train=True, state=penalty)
    small: dict[str, Any] = {"sizes": (4, 3, 3), "train": True, "by": LAYER, "state": penalty}
    yield case("gradient", "gradient", "With the loss.", FLAG, "stop_gradient", losses=True, **small)


def _parts() -> Iterator[Definition]:
    case = {name: partial(single, PARTS, name) for name in (GATES, LOSS, EXCESS, PENALTY)}
    signed = groups_tokens([[[0.5, 0.0, -0.25], [2.0**-20, -(2.0**-20), 1.0]]])
    yield case[GATES]("gates", "tie", "Logits above 0, at 0 and below it.", FLAG, logits=signed)
    yield case[GATES]("gates_gradient", "gradient", "By the logits.", FLAG, logits=logits(f"{PARTS}/a", (1, 4, 3)))
    gates = groups_tokens(np.maximum(logits(f"{PARTS}/b").array, 0))
    purpose = "Two groups, one choice of three."
    yield case[LOSS]("loss", "value", purpose, FLAG, gates=gates, penalty=_scalar(0.75), choices=1)
    purpose = "By the gates; where they are 0 there is no derivative, so that here they are below."
    below: dict[str, Any] = {"gates": logits(f"{PARTS}/c", (2, 4, 3)), "penalty": _scalar(0.5), "choices": 1}
    yield case[LOSS]("loss_gradient", "gradient", purpose, FLAG, "stop_gradient", by=("gates",), **below)
    yield case[EXCESS]("excess", "value", "Two groups, whose excess adds.", FLAG, gates=gates, choices=1)
    for name, excess in (("rises", 1.0), ("stays", 0.0), ("falls", -300.0)):
        given: dict[str, Any] = {"penalty": _scalar(0.375), "excess": _scalar(excess)}
        yield case[PENALTY](f"penalty_{name}", "value", f"The penalty {name}.", FLAG, **given, multiplier=1.2)


def penalty_divided_at_the_target(B: Spec, penalty: Array, excess: Array, *, multiplier: float = 1.2) -> Array:
    """The penalty is also divided if the number of active gates is exactly the target."""
    return np.where(excess > 0, penalty * multiplier, penalty / multiplier)


def loss_without_load(B: Spec, gates: Array, penalty: Array, *, choices: int) -> Array:
    """The loss is the unweighted L1 norm of the gates."""
    return penalty * gates.sum(axis=2).mean()


def loss_of_a_smooth_count(B: Spec, gates: Array, penalty: Array, *, choices: int) -> Array:
    """The gradient treats an expert's token count as if it were the sum of the expert's gates."""
    smooth = np.mean((gates.real > 0) + gates - gates.real, axis=1)
    return penalty * gates.shape[2] / choices * np.mean(np.sum(smooth * gates.mean(axis=1), axis=1))


def best_gates_alone(B: Spec, route: Route) -> RouterOutput:
    """A token goes to at most K experts: the experts of its largest positive gates."""
    gates = B.relu_affinity(B.router_logits(route.tokens, route.params["kernel"]))
    last = -np.sort(-gates.real, axis=2)[:, :, route.options.choices - 1, None]
    capacity = route.options.capacity(train=bool(route.train))
    best = np.where(gates.real >= last, gates, 0)
    return rerouted(B, route.output(), B.expert_choice(best, capacity=capacity, drop_zero=True))


def variants() -> Iterator[Variant]:
    yield variant(penalty_divided_at_the_target, PENALTY, ledger="RE-1b")
    yield variant(loss_without_load, LOSS, ledger="RE-2b")
    yield variant(loss_of_a_smooth_count, LOSS, ledger="RE-3b")
    yield variant(best_gates_alone, NAME, ledger="RE-5b")
