"""The options of routers: each router has a dataclass with the fields that it reads, made of the parts in this module.

A field's type says what it may be (see `ranges`): whatever makes options, every field has been looked at, and an error
names the option as the user wrote it.
"""

import math
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal, Self

from moespec.spec.algorithms.capacity import capacity_of
from moespec.spec.checks import check_choices, plural
from moespec.spec.errors import ConfigError
from moespec.spec.ranges import Count, Factor, Scalar, Weight, check, option_types, plain

__all__ = ["RouterOptions"]


@dataclass(frozen=True, kw_only=True)
class RouterOptions:
    """The options that every router has. Raises ConfigError for a value that an option cannot have."""

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

    @classmethod
    def create(cls, router: str, values: dict[str, Any]) -> Self:
        """The options of `router`. Raises ConfigError for an option that it does not have, or that is missing."""
        known = {field.name: field.default is MISSING for field in fields(cls)}
        for name, value in values.items():
            if name not in known:
                raise ConfigError(f"{name}={value!r}: {router} does not have this option; it has {', '.join(known)}")
        for name, needed in known.items():
            if needed and name not in values:
                raise ConfigError(f"{name}: {router} needs this option, and it is missing")
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


@dataclass(frozen=True, kw_only=True)
class SlotOptions(RouterOptions):
    """How many slots an expert has."""

    capacity_factor: Factor = 1.0
    """slots in relation to tokens: capacity = factor * tokens (times choices) / experts; inf for no limit"""
    rounding: Literal["ceil", "round"] = "ceil"
    """how the capacity becomes a whole number"""
    multiple_of: Count = 1
    """the capacity is raised to a multiple of this"""
    slots_per_expert: Count | None = None
    """the capacity itself, in place of the factor"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self.items[1], self.experts)
        self.capacity()

    @property
    def items(self) -> tuple[int, int]:
        """How many tokens request slots, and how many slots each of them requests."""
        return self.tokens, 1

    def capacity(self, *, train: bool = True) -> int:
        """Slots C of an expert, from `expert_capacity`. Raises ConfigError if an expert has none."""
        if self.slots_per_expert is not None:
            return self.slots_per_expert
        return self._capacity("capacity_factor")

    def _capacity(self, name: str) -> int:
        """The capacity from the factor called `name`."""
        (tokens, choices), factor = self.items, getattr(self, name)
        if factor == math.inf:
            return tokens
        return capacity_of(
            name,
            tokens,
            self.experts,
            factor,
            choices=choices,
            rounding=self.rounding,
            multiple_of=self.multiple_of,
            instead="slots_per_expert",
        )


@dataclass(frozen=True, kw_only=True)
class CapacityOptions(SlotOptions):
    """How many slots an expert has; evaluation may have another number than training."""

    eval_capacity_factor: Factor | None = None
    """the capacity factor at evaluation, if it differs from that of training"""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.capacity(train=False)

    def capacity(self, *, train: bool = True) -> int:
        """Slots C of an expert, in training or at evaluation. Raises ConfigError if an expert has none."""
        if not train and self.eval_capacity_factor is not None:
            return self._capacity("eval_capacity_factor")
        return super().capacity(train=train)


@dataclass(frozen=True, kw_only=True)
class ExpertChoiceOptions(CapacityOptions):
    """How many slots an expert has in Expert Choice: at most as many as there are tokens."""

    def capacity(self, *, train: bool = True) -> int:
        """Slots C of an expert, in training or at evaluation. Raises ConfigError if it has none, or more than tokens."""
        slots = super().capacity(train=train)
        if slots > self.tokens:
            at_evaluation = not train and self.eval_capacity_factor is not None
            name = "eval_capacity_factor" if at_evaluation else "capacity_factor"
            if self.slots_per_expert is not None:
                name = "slots_per_expert"
            elif math.ceil(getattr(self, name) * self.tokens / self.experts) <= self.tokens:
                name = "multiple_of"
            room = plural(self.tokens, "tokens")
            raise ConfigError(
                f"{name}: {getattr(self, name)} gives an expert {slots} slots, more than the {room} of a group"
            )
        return slots


@dataclass(frozen=True, kw_only=True)
class TokenChoiceOptions(CapacityOptions):
    """How tokens that choose experts get their slots, and how their experts are weighted."""

    batch_priority: Literal["none", "max", "sum"] = "none"
    """order in which tokens get their slots: as they come, or by their highest score or the sum over their choices"""
    normalize_selected: bool = False
    """divide the combine weights of a token by their sum over its choices"""

    @property
    def choices(self) -> int:
        """Experts K that a token chooses: 1, unless the router fixes another number or has an option for it."""
        return 1

    @property
    def items(self) -> tuple[int, int]:
        """Every token requests one slot for each of its choices."""
        return self.tokens, self.choices


@dataclass(frozen=True, kw_only=True)
class NoiseOptions(RouterOptions):
    """Gating noise."""

    noise_multiplier: Scalar = 1.0
    """standard deviation of the gating noise times the number of experts; 0 for no noise"""


@dataclass(frozen=True, kw_only=True)
class BalanceLossOptions(RouterOptions):
    """Weights of the auxiliary losses that any router with logits can have."""

    importance_weight: Weight = 0.0
    """weight of the importance loss"""
    balance_weight: Weight = 0.0
    """weight of the balance loss"""
    balance_scope: Literal["group", "batch", "global"] = "group"
    """whose choices the balance loss counts: those of a group, of all groups that a device computes together (an accumulated
    part), or of all devices"""
    z_weight: Weight = 0.0
    """weight of the router z-loss"""


@dataclass(frozen=True, kw_only=True)
class NoisyLossOptions(NoiseOptions, BalanceLossOptions):
    """Gating noise, and the losses of routers that have it."""

    load_weight: Weight = 0.0
    """weight of the load loss, which there is only with noise"""
    balance_logits: Literal["noisy", "clean"] = "noisy"
    """whether the balance loss sees the gating noise"""
    z_logits: Literal["clean", "noisy"] = "clean"
    """whether the router z-loss sees the gating noise"""
