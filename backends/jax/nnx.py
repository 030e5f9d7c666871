"""`MoE`, a Flax nnx module that replaces an MLP.

    block.mlp = MoE(384, 1536, experts=16, tokens=196, router="softmax_token_choice", rngs=rngs)
    ...
    logits, losses = nnx.capture(model, AuxiliaryLoss)(images)
    loss = criterion(logits, targets) + auxiliary_loss(losses)

A router's state, such as the bias of `sigmoid_token_choice`, is a `RouterState`. Update the state once per step:

    logits, losses, statistics = nnx.capture(model, AuxiliaryLoss, RoutingStatistic)(images)
    ...
    update_states(model, statistics)

Only this module imports Flax.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.core.spmd import get_logical_axis_rules

from moespec.backends import jax as B
from moespec.backends.jax.arrays import Array
from moespec.backends.jax.modules import routed
from moespec.backends.layer import PARTS, documented, initial, layer_of
from moespec.backends.optimizer import STATE, is_fixed
from moespec.spec.routers import Router, RouterName
from moespec.spec.routing import Params

__all__ = [
    "AuxiliaryLoss",
    "Constant",
    "MoE",
    "RouterState",
    "RoutingMetric",
    "RoutingStatistic",
    "auxiliary_loss",
    "update_states",
]

AXES = {
    **dict.fromkeys(("w1", "w3"), ("expert", "embed", "mlp")),
    **dict.fromkeys(("b1", "b3"), ("expert", "mlp")),
    **{"w2": ("expert", "mlp", "embed"), "b2": ("expert", "embed")},
}
"""The logical axes of expert parameters. A shared expert has all of these axes except the first."""


class AuxiliaryLoss(nnx.Variable):  # type: ignore[misc]
    """The weighted auxiliary losses of each call of a layer, by name (`losses`). Add these losses to the loss of the model."""


class RoutingMetric(nnx.Variable):  # type: ignore[misc]
    """The metrics of each call of a layer, by name (`metrics`), for logging: load, coverage, dropped, entropy, ..."""


class RouterState(nnx.Variable):  # type: ignore[misc]
    """The state that a router keeps between steps and that optimisers do not change."""


class RoutingStatistic(nnx.Variable):  # type: ignore[misc]
    """The sums from each training call of a layer, by name (`statistics`), from which `update_states` computes the next state."""


class Constant(nnx.Variable):  # type: ignore[misc]
    """Arrays that are saved with the parameters but not trained, such as the tables of a hash layer."""


@documented
class MoE(nnx.Module):  # type: ignore[misc]
    """A mixture-of-experts layer that replaces an MLP and maps (images, ..., width) to an array of the same shape and dtype.

    deterministic: if true, the layer uses neither gating noise nor the training capacity. `model.eval()` sets this attribute.
    rngs: the source of gating noise (stream `gating`). The random initial values use `seed`, not `rngs`.

    Router logits, weights and losses are computed in float32 or better. `nnx.capture` with `AuxiliaryLoss` and
    `RoutingMetric` returns the losses and the metrics. Expert parameters have the logical axes "expert", "embed" and
    "mlp". If a mesh and logical axis rules are set, Flax shards these parameters at creation.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        experts: int,
        *,
        tokens: int,
        router: RouterName | Router[Any] = "soft_moe",
        group_images: int = 1,
        gelu: str = "tanh",
        expert_init: str = "independent",
        seed: int = 0,
        expert_activation: str = "gelu",
        expert_bias: bool = True,
        shared_experts: int = 0,
        shared_gate: bool = False,
        latent_width: int = 0,
        latent_norm: bool = False,
        constant_experts: int = 0,
        copy_experts: int = 0,
        zero_experts: int = 0,
        weights_on: str = "output",
        deterministic: bool = False,
        rngs: nnx.Rngs | None = None,
        **router_options: Any,
    ) -> None:
        start: Any = {"group_images": group_images, "gelu": gelu, "expert_init": expert_init, "seed": seed}
        start |= {"expert_activation": expert_activation, "expert_bias": expert_bias, "shared_experts": shared_experts}
        start |= {"shared_gate": shared_gate, "latent_width": latent_width, "latent_norm": latent_norm}
        start |= {"constant_experts": constant_experts, "copy_experts": copy_experts, "zero_experts": zero_experts}
        start["weights_on"] = weights_on
        self.layer = layer_of(
            width, hidden, experts, tokens=tokens, router=router, **start, router_options=router_options
        )
        params = jax.tree.map(jnp.asarray, initial(self.layer))
        state = params["router"].pop(STATE, {})
        self.state = nnx.data({name: RouterState(value) for name, value in state.items()})
        self.router = nnx.data(_variables(params["router"]))
        self.experts = nnx.data(_variables(params["experts"]))
        self.shared = nnx.data(_variables(params.get("shared", {})))
        self.latent = nnx.data(_variables(params.get("latent", {})))
        self.constants = nnx.data(_variables(params.get("constants", {})))
        self.deterministic = deterministic
        self.rngs = nnx.data(None) if rngs is None else rngs.gating.fork()

    def __call__(
        self,
        x: Array,
        ids: Array | None = None,
        *,
        choices: Array | None = None,
        deterministic: bool | None = None,
        rngs: nnx.Rngs | nnx.RngStream | Array | None = None,
    ) -> Array:
        """Maps x (images, ..., width) to an array of the same shape and dtype.

        ids: the token ids (images, ...) for a router that needs ids (default: the token positions). choices: (images, ..., choices)
            integers, recorded choices that replace the choices of the router. deterministic, rngs: replace the layer's settings in this
            call. `rngs` may also be a random key.

        Raises ShapeError if x has a different width or if the batch does not split into groups, and ConfigError if random keys are missing.
        """
        train = not (self.deterministic if deterministic is None else deterministic)
        noisy = train and B.ROUTERS[self.layer.router].noise(self.layer.options) is not None
        key = _key(self.rngs if rngs is None else rngs) if noisy else None
        params = {part: _arrays(getattr(self, part)) for part in PARTS}
        kept: Any = {"state": _arrays(self.state), "choices": choices}
        y, losses, metrics, statistics = routed(self.layer, params, x, ids, key, train=train, **kept)
        if hasattr(self, "__captures__"):  # The layer stores results only inside `nnx.capture`.
            # Each kind of result has a different name, because `nnx.capture` loses one of two kinds with the same name.
            self.sow(AuxiliaryLoss, "losses", losses)
            self.sow(RoutingMetric, "metrics", metrics)
            if train and statistics:
                self.sow(RoutingStatistic, "statistics", statistics)
        return y


def auxiliary_loss(captured: Any) -> Array:
    """The sum of all losses from `nnx.capture(model, AuxiliaryLoss)`, a scalar that is 0 if there are no losses."""
    return sum(jax.tree.leaves(captured), start=jnp.zeros(()))


def update_states(model: nnx.Module, captured: Any) -> None:
    """Updates a model's router states from the statistics that `nnx.capture` returns. Call this function once per step.

    Add the statistics of several batch parts or devices with `jax.tree.map(jnp.add, first, second)`.
    """
    for path, module in nnx.iter_modules(model):
        found = captured
        for name in path:
            found = found.get(name, {})
        if isinstance(module, MoE) and "statistics" in found:
            first, *others = found["statistics"].get_value()  # one per call
            total = jax.tree.map(lambda *each: sum(each), first, *others)
            layer = module.layer
            for name, value in B.ROUTERS[layer.router].update(layer.options, _arrays(module.state), total).items():
                module.state[name][...] = value


def _variables(arrays: Mapping[str, Array]) -> dict[str, nnx.Variable]:
    return {name: _variable(name, value) for name, value in arrays.items()}


def _variable(name: str, value: Array) -> nnx.Variable:
    if is_fixed(("router", name)):
        return Constant(value)
    if name not in AXES:
        return nnx.Param(value)
    placed = bool(get_logical_axis_rules()) and not jax.sharding.get_abstract_mesh().empty
    return nnx.Param(value, out_sharding=AXES[name][-value.ndim :], eager_sharding=placed)


def _arrays(variables: Any) -> Params:
    return {name: variable[...] for name, variable in variables.items()}


def _key(rngs: Any) -> Array | None:
    if isinstance(rngs, nnx.Rngs):
        rngs = rngs.gating
    key: Array | None = rngs() if isinstance(rngs, nnx.RngStream) else rngs
    return key
