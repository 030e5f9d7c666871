"""The options of routers: what all have in common, the capacity, and what options mean that several routers have.

Each router writes its options out in its own module, as fields of its class `Options`. A field's type says what it may be (see
`ranges`): whatever makes options, every field has been looked at, and an error names the option as the user wrote it.
"""

import math
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, Self

from moespec.spec.algorithms.capacity import capacity_of
from moespec.spec.checks import check_choices, plural
from moespec.spec.errors import ConfigError
from moespec.spec.ranges import Count, check, option_types, plain

__all__ = ["RouterOptions"]

TEXTS = {
    "capacity_factor": "slots in relation to tokens: capacity = factor * tokens (times choices) / experts; inf for no limit",
    "eval_capacity_factor": "the capacity factor at evaluation; None for the one of training",
    "rounding": "how the capacity becomes a whole number",
    "multiple_of": "the capacity is raised to a multiple of this",
    "slots_per_expert": "the capacity itself, in place of the factor",
    "choices": "experts K that a token chooses",
    "batch_priority": "order in which tokens get their slots: as they come, or by their highest score or the sum over their choices",
    "slot_order": "whether first choices get their slots before all second ones, or a token all of its own before the next token",
    "normalize_selected": "divide the combine weights of a token by their sum over its choices",
    "normalize_when": "with normalize_selected, whether that is done before some choices find no slot or after it, over those "
    "that got one",
    "normalize_norm": "with normalize_selected, what weights are divided by: their sum, or the root of the sum of their squares",
    "bias": "whether logits have a bias, a parameter of the router",
    "jitter": "largest relative change of the router's input in training, in place of other noise; 0 for none",
    "logit_cap": "bound of the logits, which a hyperbolic tangent keeps below it; 0 for none",
    "noise_multiplier": "standard deviation of the gating noise times the number of experts; 0 for no noise",
    "importance_weight": "weight of the importance loss",
    "load_weight": "weight of the load loss, which there is only with noise",
    "balance_weight": "weight of the balance loss",
    "balance_scope": "where the balance loss counts choices: in one group, in all groups that a device computes together (an "
    "accumulated part), or on all devices",
    "balance_counts": "whether the balance loss counts the first choice of a token alone, or all (as many times as large, then)",
    "balance_logits": "whether the balance loss sees the gating noise",
    "z_weight": "weight of the router z-loss",
    "z_logits": "whether the router z-loss sees the gating noise",
    "combine_with": "what weights the experts' outputs; plan: the ablation, with a gradient if it is a Sinkhorn plan",
    "combine_from_clean_logits": "leave the noise out of the combine weights",
    "sinkhorn_iterations": "updates of the Sinkhorn plan",
    "transport_objective": "what the solver of the sparsity-constrained plan maximises",
    "transport_steps": "solver steps of the sparsity-constrained plan",
}
"""What an option does that several routers have, by name. The text below a field of a router's `Options` goes before it."""


@dataclass(frozen=True, kw_only=True)
class RouterOptions:
    """The options that every router has. Raises ConfigError for a value that an option cannot have."""

    experts_choose: ClassVar[bool] = False
    """whether experts choose tokens, so that an expert fills all its slots, and has at most one for each token"""

    width: Count
    """width D of a token"""
    experts: Count
    """number of experts E"""
    tokens: Count
    """tokens T of one routing group"""

    def __post_init__(self) -> None:
        kind: Any = type(self)  # mypy takes the class of a dataclass for unhashable
        for name, hint in option_types(kind).items():
            check(name, value := getattr(self, name), hint)
            object.__setattr__(self, name, plain(value))
        for train in (True, False):
            self.capacity(train=train)
        jitter, multiplier = getattr(self, "jitter", 0), getattr(self, "noise_multiplier", 0)
        if jitter and multiplier:
            raise ConfigError(
                f"jitter={jitter!r}: a router has one kind of noise; set noise_multiplier=0, got {multiplier!r}"
            )

    @classmethod
    def create(cls, router: str, values: dict[str, Any]) -> Self:
        """The options of `router`. Raises ConfigError for an option that it does not have, or that is missing."""
        known = {field.name: field.default is MISSING for field in fields(cls)}
        for name, value in values.items():
            if name not in known:
                raise ConfigError(f"{name}={value!r}: {router} does not have this option; it has {', '.join(known)}")
        for name, needed in known.items():
            if needed and name not in values:
                raise ConfigError(f"{name}: missing; {router} needs this option")
        return cls(**values)

    def check_training(self) -> None:
        """ConfigError for options that are valid at evaluation only."""

    def of_tokens(self, tokens: int, images: int | None = None) -> Self:
        """These options for groups of another size, and for a router that asks of as many images, if not of those before:
        made without a look at the types of the fields, which no compiler that traces a model would follow."""
        options = object.__new__(type(self))
        for field in fields(self):
            object.__setattr__(options, field.name, getattr(self, field.name))
        object.__setattr__(options, "tokens", tokens)
        if images is not None and hasattr(options, "images"):
            object.__setattr__(options, "images", images)
        return options

    @property
    def requests(self) -> tuple[int, int]:
        """How many tokens request slots, and how many slots each of them requests: one for each of its choices."""
        return self.tokens, getattr(self, "choices", 1)

    def capacity(self, *, train: bool = True) -> int:
        """Slots C of an expert, in training or at evaluation: one for each token where the router has no capacity.

        Raises ConfigError if an expert has none, or, where experts choose, more than tokens.
        """
        return slots(self, train=train) if hasattr(self, "capacity_factor") else self.tokens


def slots(options: Any, *, train: bool) -> int:
    """Slots C of an expert by the options of a capacity, of which a router has `capacity_factor` at least; see `capacity_of`."""
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
