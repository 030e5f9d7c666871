"""`MoE`, an Equinox module that takes the place of an MLP.

    moe = MoE(384, 1536, experts=16, tokens=196, router="softmax_token_choice")
    y, losses, metrics = moe(x, key=key)

Equinox is imported here, and nowhere else.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from moespec.backends.jax.arrays import Array
from moespec.backends.jax.modules import Routed, routed
from moespec.backends.layer import Layer, initial, layer_of
from moespec.spec.routers.names import RouterName

__all__ = ["MoE", "Routed"]


class MoE(eqx.Module):  # type: ignore[misc]
    """A mixture-of-experts layer in place of an MLP: (images, ..., width) to the same shape and dtype.

    The arguments are those of `moespec.backends.torch.nn.MoE`, and so are the initial values of a seed:

    width, hidden: of each expert, a perceptron `gelu(x w1 + b1) w2 + b2`.
    experts: their number.
    tokens: tokens of one image, for which the capacity is computed: all axes between the first and the last. An input with
        another number is routed with the capacity of that number; the slots of Soft MoE, which are parameters, stay as many
        as they are.
    router: a key of `ROUTERS`.
    group_images: images that are routed together, as one group; the batch must be a multiple.
    gelu: "tanh" or "erf".
    expert_init: "independent" initial values, or "shared" by all experts.
    seed: of the initial values (Glorot uniform kernels, biases normal(1e-6), the router's own).
    inference: whether it is not training, which has gating noise and the capacity of training; `eqx.nn.inference_mode` sets it.
    router_options: options of that router (`ROUTERS[router].Options` has them): choices, importance_weight, ... Of a
        router that needs token ids, `ids` is their number, `tokens` if not given: the places in the image.

    Router logits, weights and losses are computed in float32 or better. The tables of a hash layer are integers, which
    `eqx.is_inexact_array` does not select.

    Raises ConfigError for an argument out of range or an option that the router does not have.
    """

    router: dict[str, Array]
    experts: dict[str, Array]
    layer: Layer = eqx.field(static=True)
    inference: bool

    def __init__(
        self,
        width: int,
        hidden: int,
        experts: int,
        *,
        tokens: int,
        router: RouterName = "soft_moe",
        group_images: int = 1,
        gelu: str = "tanh",
        expert_init: str = "independent",
        seed: int = 0,
        inference: bool = False,
        **router_options: Any,
    ) -> None:
        start: Any = {"expert_init": expert_init, "seed": seed}
        sizes: Any = {"tokens": tokens, "group_images": group_images}
        self.layer = layer_of(
            width, hidden, experts, **sizes, router=router, gelu=gelu, **start, router_options=router_options
        )
        params = jax.tree.map(jnp.asarray, initial(self.layer, hidden, **start))
        self.router, self.experts = params["router"], params["experts"]
        self.inference = inference

    def __call__(
        self, x: Array, ids: Array | None = None, *, key: Array | None = None, inference: bool | None = None
    ) -> Routed:
        """x (images, ..., width) to (y, losses, metrics): the losses are weighted, and to be added to that of the model.

        ids: (images, ...), for a router that needs token ids, the places if None. key: of the gating noise of a router that has
        it. inference: in place of that of the layer. The batch is the layer's own axis, so that it is not put under `jax.vmap`.

        Raises ShapeError for x of another width or a batch that does not split into groups, ConfigError for a missing key.
        """
        train = not (self.inference if inference is None else inference)
        return routed(self.layer, {"router": self.router, "experts": self.experts}, x, ids, key, train=train)
