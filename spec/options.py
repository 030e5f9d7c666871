"""Router options: the fields that all routers have, the capacity, and the help texts that several routers share.

The module of each router defines its options as fields of the class `Options`. The type of a field defines the valid values (see
`ranges`). The constructor checks every field, and errors name the option and the value that the user passed.
"""

import math
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, ClassVar, Self

from moespec.spec.algorithms.capacity import capacity_of
from moespec.spec.checks import check_choices, plural
from moespec.spec.errors import ConfigError
from moespec.spec.names import near_it
from moespec.spec.ranges import Count, check, option_types, plain

__all__ = ["RouterOptions"]

TEXTS = {
    "capacity_factor": "capacity = factor * tokens / experts, multiplied by the choices if tokens choose; inf: no limit",
    "eval_capacity_factor": "capacity factor at evaluation; None for the factor of training",
    "rounding": "rounding of the capacity to an integer",
    "multiple_of": "round the capacity up to a multiple of this",
    "slots_per_expert": "slots per expert, instead of capacity_factor",
    "choices": "number K of experts that a token chooses",
    "batch_priority": "order in which tokens get slots: by position, by highest score, or by the sum over their choices",
    "slot_order": "give slots to all first choices before all second choices, or to all choices of a token before the next token",
    "normalize_selected": "divide the combine weights of a token by their sum over its choices",
    "normalize_when": "with normalize_selected: normalise over all choices, before slots are assigned, or afterwards over the "
    "choices that got a slot",
    "normalize_norm": "with normalize_selected: divide by the sum of the weights, or by the root of the sum of their squares",
    "bias": "add a learned bias to the logits",
    "jitter": "largest relative change of the router's input in training, instead of gating noise; 0 for none",
    "logit_cap": "bound of the logits, applied with a hyperbolic tangent; 0 for none",
    "noise_multiplier": "standard deviation of the gating noise times the number of experts; 0 for no noise",
    "importance_weight": "weight of the importance loss",
    "load_weight": "weight of the load loss, which requires noise",
    "balance_weight": "weight of the balance loss",
    "balance_scope": "groups over which the balance loss counts choices: one group, all groups that a device computes together "
    "(a micro-batch), or all devices",
    "balance_counts": "count only the first choice of a token in the balance loss, or all choices (K times as large)",
    "balance_logits": "logits of the balance loss, with or without the gating noise",
    "z_weight": "weight of the router z-loss",
    "z_logits": "logits of the router z-loss, with or without the gating noise",
    "combine_with": "weight of the experts' outputs; plan: an ablation, differentiable for a Sinkhorn plan",
    "combine_from_clean_logits": "exclude the noise from the combine weights",
    "sinkhorn_iterations": "updates of the Sinkhorn plan",
    "transport_objective": "objective of the solver of the sparsity-constrained plan",
    "transport_steps": "solver steps of the sparsity-constrained plan",
}
"""Help texts of options that several routers share, by name. The docstring of a field in a router's `Options` takes precedence."""


@dataclass(frozen=True, kw_only=True)
class RouterOptions:
    """The options that every router has. Raises ConfigError for an invalid value."""

    experts_choose: ClassVar[bool] = False
    """whether experts choose tokens; if so, an expert fills all its slots, each with a different token"""

    width: Count
    """width D of a token"""
    experts: Count
    """number of experts E"""
    tokens: Count
    """number T of tokens in a routing group"""

    def __post_init__(self) -> None:
        kind: Any = type(self)  # mypy treats the class of a dataclass as unhashable
        for name, hint in option_types(kind).items():
            check(name, value := getattr(self, name), hint)
            object.__setattr__(self, name, plain(value))
        for train in (True, False):
            self.capacity(train=train)
        jitter, multiplier = getattr(self, "jitter", 0), getattr(self, "noise_multiplier", 0)
        if jitter and multiplier:
            raise ConfigError(
                f"jitter={jitter!r}: cannot be combined with noise_multiplier={multiplier!r}; set one of them to 0"
            )

    @classmethod
    def create(cls, router: str, values: dict[str, Any]) -> Self:
        """Creates the options of `router`. Raises ConfigError for an unknown or missing option."""
        known = {field.name: field.default is MISSING for field in fields(cls)}
        for name, value in values.items():
            if name not in known:
                text = f"does not have this option; it has {', '.join(known)}{near_it(name, known)}"
                raise ConfigError(f"{name}={value!r}: {router} {text}")
        for name, needed in known.items():
            if needed and name not in values:
                raise ConfigError(f"{name}: missing; {router} needs this option")
        return cls(**values)

    def check_training(self) -> None:
        """Raises ConfigError for options that are valid only at evaluation."""

    def of_tokens(self, tokens: int, images: int | None = None) -> Self:
        """Copies these options for groups of a different size and, if the router has the option `images`, a
        different number of images. The copy skips the type checks, which compilers cannot trace."""
        options = object.__new__(type(self))
        for field in fields(self):
            object.__setattr__(options, field.name, getattr(self, field.name))
        object.__setattr__(options, "tokens", tokens)
        if images is not None and hasattr(options, "images"):
            object.__setattr__(options, "images", images)
        return options

    @property
    def requests(self) -> tuple[int, int]:
        """Returns the number of tokens that request slots, and the number of slots that each token requests."""
        return self.tokens, getattr(self, "choices", 1)

    def capacity(self, *, train: bool = True) -> int:
        """Returns the number of slots C of an expert. Without the option `capacity_factor`, C is the number of tokens.

        Raises ConfigError if an expert has no slot. If experts choose tokens, also raises ConfigError for more slots than tokens.
        """
        return slots(self, train=train) if hasattr(self, "capacity_factor") else self.tokens


def field_names(options: Any) -> set[str]:
    """Returns the field names of a dataclass, or an empty set for another object."""
    return {each.name for each in fields(options)} if is_dataclass(options) else set()


def slots(options: Any, *, train: bool) -> int:
    """Computes the number of slots C of an expert from the capacity options (see `capacity_of`). Only `capacity_factor` is required."""
    (tokens, choices), name = options.requests, "capacity_factor"
    check_choices(choices, options.experts)
    rounding, multiple_of = getattr(options, "rounding", "ceil"), getattr(options, "multiple_of", 1)
    count = fixed = getattr(options, "slots_per_expert", None)
    if not train and getattr(options, "eval_capacity_factor", None) is not None:
        name, count = "eval_capacity_factor", None
    factor = getattr(options, name)
    if count is None and factor == math.inf:
        count = tokens
    elif count is None:
        rule: Any = {"rounding": rounding, "multiple_of": multiple_of, "instead": "slots_per_expert"}
        count = capacity_of(name, tokens, options.experts, factor, choices=choices, **rule)
    if options.experts_choose and count > options.tokens:
        if fixed is not None:
            name = "slots_per_expert"
        elif math.ceil(factor * options.tokens / options.experts) <= options.tokens:
            name = "multiple_of"
        given, room = getattr(options, name, multiple_of), plural(options.tokens, "tokens")
        raise ConfigError(f"{name}: {given} gives each expert {count} slots, but a group has only {room}")
    return int(count)
