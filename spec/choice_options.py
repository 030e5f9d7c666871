"""Options of routers in which code bases differ, where their logits or their choices allow it."""

from dataclasses import dataclass
from typing import Literal

from moespec.spec.errors import ConfigError
from moespec.spec.options import RouterOptions, TokenChoiceOptions
from moespec.spec.ranges import Scalar


@dataclass(frozen=True, kw_only=True)
class SeveralChoicesOptions(TokenChoiceOptions):
    """What matters where a token may choose two experts or more."""

    normalize_when: Literal["before", "after"] = "before"
    """with normalize_selected, whether that is done before some choices find no slot or after it, over those that got one"""
    normalize_norm: Literal["sum", "euclidean"] = "sum"
    """with normalize_selected, what weights are divided by: their sum, or the root of the sum of their squares"""
    slot_order: Literal["choice", "token"] = "choice"
    """whether first choices get their slots before all second ones, or a token all of its own before the next token"""


@dataclass(frozen=True, kw_only=True)
class BalanceCountOptions(RouterOptions):
    """Which choices the balance loss counts."""

    balance_counts: Literal["first", "all"] = "first"
    """whether the balance loss counts the first choice of a token alone, or all (as many times as large, then)"""


@dataclass(frozen=True, kw_only=True)
class LogitOptions(RouterOptions):
    """How logits are made of tokens, besides the product with the kernel."""

    bias: bool = False
    """whether logits have a bias, a parameter of the router"""
    jitter: Scalar = 0.0
    """largest relative change of the router's input in training, in place of other noise; 0 for none"""
    logit_cap: Scalar = 0.0
    """bound of the logits, which a hyperbolic tangent keeps below it; 0 for none"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.jitter and (multiplier := getattr(self, "noise_multiplier", 0)):
            raise ConfigError(
                f"jitter={self.jitter!r}: a router has one kind of noise, and noise_multiplier is {multiplier!r}; it must be 0"
            )
