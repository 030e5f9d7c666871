"""`MoE`, an Equinox module that replaces an MLP.

    moe = MoE(384, 1536, experts=16, tokens=196, router="softmax_token_choice")
    y, losses, metrics, _ = moe(x, key=key)

If the router keeps a state, such as the bias of `sigmoid_token_choice`, pass the state to the layer and update the state once per step:

    state = moe.initial_state()
    y, losses, metrics, statistics = moe(x, state=state)
    state = moe.update(state, statistics)

Only this module imports Equinox.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from moespec.backends import jax as B
from moespec.backends.jax.arrays import Array
from moespec.backends.jax.modules import Routed, routed
from moespec.backends.layer import PARTS, Layer, documented, initial, layer_of
from moespec.backends.optimizer import STATE
from moespec.spec.routers import Router, RouterName
from moespec.spec.routing import State

__all__ = ["MoE", "Routed"]


@documented
class MoE(eqx.Module):  # type: ignore[misc]
    """A mixture-of-experts layer that replaces an MLP and maps (images, ..., width) to an array of the same shape and dtype.

    inference: if true, the layer uses neither gating noise nor the training capacity. `eqx.nn.inference_mode` sets this field.

    Router logits, weights and losses are computed in float32 or better. The tables of a hash layer are integers, so
    `eqx.is_inexact_array` does not select them as trained parameters.
    """

    router: dict[str, Array]
    experts: dict[str, Array]
    shared: dict[str, Array]
    latent: dict[str, Array]
    constants: dict[str, Array]
    layer: Layer = eqx.field(static=True)
    inference: bool

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
        inference: bool = False,
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
        params["router"].pop(STATE, None)
        self.router, self.experts = params["router"], params["experts"]
        self.shared, self.latent, self.constants = (params.get(part, {}) for part in PARTS[2:])
        self.inference = inference

    def __call__(
        self,
        x: Array,
        ids: Array | None = None,
        *,
        choices: Array | None = None,
        state: State | None = None,
        key: Array | None = None,
        inference: bool | None = None,
    ) -> Routed:
        """Maps x (images, ..., width) to (y, losses, metrics, statistics). Add the losses, which are already weighted, to the model's loss.

        ids: the token ids (images, ...) for a router that needs ids (default: the token positions). choices: (images, ..., choices)
            integers, recorded choices that replace the choices of the router. state: the router state, for a router that keeps a
            state. key: the random key of the gating noise, for a router with noise. inference: replaces the layer's setting in
            this call. The layer handles the batch axis, so do not wrap the layer in `jax.vmap`.

        Raises ShapeError if x has a different width or if the batch does not split into groups, and ConfigError if a key is missing.
        """
        train = not (self.inference if inference is None else inference)
        params = {part: getattr(self, part) for part in PARTS}
        return routed(self.layer, params, x, ids, key, train=train, state=state, choices=choices)

    def initial_state(self) -> State:
        """The router's state before the first step. Most routers keep no state and return an empty dict."""
        state: State = jax.tree.map(jnp.asarray, B.ROUTERS[self.layer.router].initial_state(self.layer.options))
        return state

    def update(self, state: State, statistics: State) -> State:
        """Computes the router's next state from the summed statistics of all calls. Raises ConfigError if the router keeps no state."""
        new: State = B.ROUTERS[self.layer.router].update(self.layer.options, state, statistics)
        return new
