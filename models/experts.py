"""The configuration of the experts in MoE blocks, and the overrides of single MoE blocks, for all models with MoE blocks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self, TypeVar

from moespec.models import layers, parameters
from moespec.models.checks import check_names
from moespec.models.layers import Experts
from moespec.models.options import MOE, option
from moespec.models.parameters import Draw, Parameter, normal
from moespec.models.router_options import named, options_of
from moespec.spec.errors import ConfigError
from moespec.spec.options import RouterOptions
from moespec.spec.routers import router_name
from moespec.spec.routing import Params

__all__ = ["ExpertsConfig", "moe_layout", "of_block"]

Config = TypeVar("Config", bound="ExpertsConfig")

KINDS = (
    *("expert_init", "expert_activation", "expert_bias", "shared_experts", "shared_gate", "latent_width"),
    *("latent_norm", "constant_experts", "copy_experts", "zero_experts", "weights_on"),
)
"""The fields of the experts that `block` may override in every model."""


@dataclass(frozen=True, kw_only=True)
class ExpertsConfig:
    """The configuration fields of the experts in MoE blocks. The model has the fields `moe`, `router` and `router_options`."""

    overridable: ClassVar[tuple[str, ...]]
    """the fields that `block` may override for a single MoE block"""
    expert_init: Literal["independent", "shared"] = option("independent", only=MOE, rare=True)
    """initial values: independent for each expert, or shared by all experts of a layer"""
    expert_activation: layers.ExpertActivation = option("gelu", only=MOE)
    """expert network; gelu: gelu(x w1 + b1) w2 + b2; geglu: (gelu(x w1 + b1) * (x w3 + b3)) w2 + b2; swiglu: geglu with silu
    instead of gelu; relu2: gelu with the square of ReLU; clamped_swiglu, swiglu_oai, situglu: as in DeepSeek-V4, gpt-oss, Kimi K3"""
    expert_bias: bool = option(True, only=MOE, rare=True)
    """add biases to the experts"""
    shared_experts: layers.Size = option(0, only=MOE)
    """experts per layer that process every token, in addition to the routed experts; computed as one expert of their total width"""
    shared_gate: bool = option(False, only=MOE, rare=True)
    """weight the shared experts by the sigmoid of a linear function of the token, as in Qwen2-MoE"""
    latent_width: layers.Size = option(0, only=MOE, rare=True)
    """width at which experts compute, between a projection down and a projection up; 0: the width of the routed items"""
    latent_norm: bool = option(False, only=MOE, rare=True)
    """normalise the combined output of the experts before the projection up (RMSNorm), as in Kimi K3"""
    constant_experts: layers.Size = option(0, only=MOE, rare=True)
    """how many of the experts mix the token with a learned vector (MoE++)"""
    copy_experts: layers.Size = option(0, only=MOE, rare=True)
    """how many of the experts return the token (MoE++, LongCat-Flash)"""
    zero_experts: layers.Size = option(0, only=MOE, rare=True)
    """how many of the experts return zero (MoE++)"""
    weights_on: Literal["output", "input"] = option("output", only=MOE, rare=True)
    """whether the router's weights multiply the outputs of the experts, or their inputs, as in Llama 4"""
    block: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    """overrides of single MoE blocks, by block number, for the fields router, experts, router_options and so on;
    router_options override the model's options or, if the block changes the router, that router's defaults"""

    def form_of(self, hidden: int) -> Experts:
        """Returns the form of experts with this hidden width."""
        return Experts(
            hidden,
            self.expert_activation,
            self.expert_bias,
            shared=self.shared_experts * hidden,
            shared_gate=self.shared_gate,
            latent=self.latent_width,
            latent_norm=self.latent_norm,
            constants=self.constant_experts,
            copies=self.copy_experts,
            zeros=self.zero_experts,
            weights_on=self.weights_on,
        )

    def check_form(self, name: str) -> None:
        """Raises ConfigError if the fields of the experts contradict each other. name: the field with the number of experts."""
        if self.shared_gate and not self.shared_experts:
            raise ConfigError("shared_gate=True: expected shared_experts=1 or more")
        if self.latent_norm and not self.latent_width:
            raise ConfigError("latent_norm=True: expected latent_width=1 or more")
        kinds = {name: getattr(self, name) for name in ("constant_experts", "copy_experts", "zero_experts")}
        if sum(kinds.values()) >= getattr(self, name):
            largest = max(kinds, key=kinds.__getitem__)
            raise ConfigError(
                f"{largest}={kinds[largest]!r}: at least one of {name}={getattr(self, name)!r} must be an MLP, "
                f"but {sum(kinds.values())} are constant, copy or zero experts"
            )

    def set_blocks(self) -> None:
        """Creates the configurations of the blocks that `block` overrides; see `of_block`."""
        object.__setattr__(self, "_own", {number: self._with_own(number, own) for number, own in self.block.items()})

    def _with_own(self, number: str, own: Mapping[str, Any]) -> Self:
        """Returns the model's configuration with the overrides `own` of the block `number`."""
        model: Any = self
        blocks = [str(block) for block in layers.placed(model.moe, model.depth)]
        if number not in blocks:
            expected = ", ".join(map(repr, blocks)) or "but there are none"
            raise ConfigError(f"block.{number}: expected one of the MoE blocks, {expected} (moe={model.moe!r})")
        options = own.get("router_options", {}) if isinstance(own, Mapping) else None
        if not isinstance(options, Mapping):
            raise ConfigError(f"block.{number}={own!r}: expected a table whose router_options, if set, are a table")
        check_names(f"block.{number}.", own, "a block", self.overridable)
        router = own.get("router", model.router)
        if router == model.router:
            options = {**model.router_options, **options}
        with named(f"block.{number}.", self.overridable):
            has = options_of(router_name(router))
        with named(f"block.{number}.", {*self.overridable, *has}):
            return replace(self, **{**own, "router_options": options, "moe": number, "block": {}})


def of_block(config: Config, block: int) -> Config:
    """Returns the configuration with the overrides of one MoE block."""
    own: dict[str, Config] = config._own  # type: ignore[attr-defined]
    return own.get(str(block), config)


def moe_layout(
    config: ExpertsConfig,
    router: str,
    settings: RouterOptions,
    of: Experts,
    kernel: Callable[[int, int], Draw],
    bias: Draw,
) -> Params:
    """Returns the layout of an MoE layer whose experts have the form `of`. kernel, bias: as in `parameters.mlp`."""
    D, mlps = settings.width, settings.experts - of.without_mlp
    draws: Any = {"kernel": kernel, "bias": bias, "gated": of.gated, "biased": of.bias}
    one = parameters.mlp(of.latent or D, of.hidden, **draws)
    layout = parameters.moe(router, settings, one, config.expert_init, mlps)
    if of.shared:
        layout["shared"] = parameters.mlp(D, of.shared, **draws)
    if of.shared_gate:
        layout["shared"]["gate"] = Parameter((D,), normal(1e-6))
    if of.latent:
        layout["latent"] = parameters.latent(D, of.latent, norm=of.latent_norm)
    if of.constants:
        layout["constants"] = parameters.constants(of.constants, D)
    return layout
