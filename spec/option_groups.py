"""Options that several routers share, in groups. The module `options` has their help texts."""

from dataclasses import dataclass
from typing import Literal

from moespec.spec.options import RouterOptions
from moespec.spec.ranges import Count, Factor, Scalar, Weight


@dataclass(frozen=True, kw_only=True)
class LogitOptions(RouterOptions):
    """Options of the logits."""

    bias: bool = False
    jitter: Scalar = 0.0
    logit_cap: Scalar = 0.0


@dataclass(frozen=True, kw_only=True)
class CapacityOptions(RouterOptions):
    """Options of the capacity."""

    capacity_factor: Factor = 1.0
    rounding: Literal["ceil", "round"] = "ceil"
    multiple_of: Count = 1
    slots_per_expert: Count | None = None
    eval_capacity_factor: Factor | None = None


@dataclass(frozen=True, kw_only=True)
class OrderOptions(RouterOptions):
    """Options of the order and the weights of tokens that choose experts."""

    batch_priority: Literal["none", "max", "sum"] = "none"
    normalize_selected: bool = False


@dataclass(frozen=True, kw_only=True)
class SlotOptions(RouterOptions):
    """Further options of the weights and the order of slots."""

    normalize_when: Literal["before", "after"] = "before"
    normalize_norm: Literal["sum", "euclidean"] = "sum"
    slot_order: Literal["choice", "token"] = "choice"


@dataclass(frozen=True, kw_only=True)
class CountOptions(RouterOptions):
    """The option of the choices that the balance loss counts."""

    balance_counts: Literal["first", "all"] = "first"


@dataclass(frozen=True, kw_only=True)
class LossOptions(RouterOptions):
    """Options of the losses of a router without gating noise."""

    importance_weight: Weight = 0.0
    balance_weight: Weight = 0.0
    balance_scope: Literal["group", "batch", "global"] = "group"
    z_weight: Weight = 0.0


@dataclass(frozen=True, kw_only=True)
class NoiseOptions(RouterOptions):
    """Options of the gating noise and its losses."""

    noise_multiplier: Scalar = 1.0
    load_weight: Weight = 0.0
    balance_logits: Literal["noisy", "clean"] = "noisy"
    z_logits: Literal["clean", "noisy"] = "clean"


@dataclass(frozen=True, kw_only=True)
class NoisyOptions(NoiseOptions, LossOptions, CapacityOptions, LogitOptions):
    """Options of a router with gating noise."""


@dataclass(frozen=True, kw_only=True)
class TokenChoiceOptions(
    NoiseOptions, LossOptions, CountOptions, SlotOptions, OrderOptions, CapacityOptions, LogitOptions
):
    """Options of a router with gating noise whose tokens choose experts."""
