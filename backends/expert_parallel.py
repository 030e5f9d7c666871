"""Expert parallelism for all backends: devices send slots to the devices that hold the experts, and receive the outputs."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from moespec.backends.common.expert_kinds import Kinds, weighted_inputs, with_kinds
from moespec.backends.mesh import MeshSizes, Transport, check_whole_experts
from moespec.backends.optimizer import OptimizerConfig
from moespec.backends.routers import composed
from moespec.spec.errors import ShapeError
from moespec.spec.routers import Routers

__all__ = ["SplitExperts"]

Array = Any


class SplitExperts:
    """A backend with experts split over the mesh axis `expert`. The single-device backend `single` provides the remaining functions.

    Shapes: G groups per device, E experts, C capacity, D width, n devices along `expert`.
    """

    single: Any
    sizes: MeshSizes
    transport: Transport = "model"
    """the dtype in which devices exchange slots: "model", the dtype of the model, or "bfloat16", to halve the bytes of float32"""
    ROUTERS: Routers
    """the routers, which `bind_routers` composes from this backend's functions"""

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute of the single-device backend, for names that this class does not define."""
        return getattr(type(self).single, name)

    def bind_routers(self) -> None:
        """Sets `ROUTERS` before compilation, so that compiled code only reads this attribute."""
        self.ROUTERS = composed(self)

    def expert_load(self, scores: Array, keep: Array | None = None, *, choices: int, scope: str = "batch") -> Array:
        """Returns the expert load on this device or, for scope "global", the sum of the expert loads on all devices."""
        load = self.single.expert_load(scores, keep, choices=choices, scope=scope)
        return self._total(load) if scope == "global" else load

    def moe_layer(self, tokens: Array, routing: Any, experts: Callable[[Array], Array]) -> Array:
        """Computes the MoE layer, in which the function `experts` applies the experts of this device. Devices along the mesh axis `expert`
        exchange the contents of slots and the outputs of experts."""
        return self.single.moe_layer(tokens, routing, self._exchanged(experts))

    def _exchanged(self, experts: Callable[[Array], Array]) -> Callable[[Array], Array]:
        """Returns a function of this device's slots that runs the `experts` of all devices."""
        if self.sizes.expert == 1:
            return experts
        return lambda slots: self._sent(self._back, experts(self._sent(self._there, slots)))

    def _sent(self, send: Callable[[Array], Array], slots: Array) -> Array:
        if self.transport == "model":
            return send(slots)
        return self.single.cast(send(self.single.cast(slots, self.transport)), slots.dtype)

    def moe_mlp(
        self,
        tokens: Array,
        routing: Any,
        params: Mapping[str, Array],
        *,
        gelu: str = "tanh",
        activation: str = "gelu",
        **kinds: Any,
    ) -> Array:
        """Computes the MoE layer with the experts of this device. If experts are split, devices exchange all slots, even empty slots."""
        options: Any = {"gelu": gelu, "activation": activation}
        if self.sizes.expert == 1:
            return self.single.moe_mlp(tokens, routing, params, **options, **kinds)
        single, around = self.single, Kinds(**kinds)
        experts = self._exchanged(partial(single.expert_mlp, params=params, **options))

        def mlps(x: Array, to: Any) -> Array:
            weighted = weighted_inputs(single.xp, to, experts) if around.weights_on == "input" else (to, experts)
            return single.moe_layer(x, *weighted)

        return with_kinds(single.xp, single.moe_layer, single.expert_mlp, mlps, tokens, routing, around, **options)

    def rows_of_device(self, batch: int) -> int:
        """Returns the number of batch rows per device. Raises ShapeError if the number of devices does not divide the batch size."""
        if batch % self.sizes.devices:
            raise ShapeError(
                f"a batch of {batch} images cannot be split evenly among {self.sizes.devices} devices ({self.sizes})"
            )
        return batch // self.sizes.devices

    def outside_of_blocks(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Gathers all parameters outside of blocks. The parameters of blocks are gathered later, one block at a time."""
        return {name: tree if name == "blocks" else self.whole(tree) for name, tree in params.items()}

    def init_state(self, params: Mapping[str, Any], optimizer: OptimizerConfig) -> Any:
        """Returns the state before the first step. Each leaf of `params` must have a shape and support slicing like a NumPy array."""
        return self.import_state({"params": params, "step": 0}, optimizer)

    def multi_hash_mlp(self, *arguments: Any, **options: Any) -> Array:
        """Computes the MultiHash layer, in which each device needs all experts. Raises ConfigError if experts are split."""
        check_whole_experts("MultiHash", self.sizes)
        return self.single.multi_hash_mlp(*arguments, **options)

    def _total(self, array: Array) -> Array:
        """Sums an array over all devices, without gradient."""
        raise NotImplementedError

    def _there(self, slots: Array) -> Array:
        """Sends the slots (G, E, C, D) of this device's groups to the devices that hold the experts. Returns (n G, E / n, C, D)."""
        raise NotImplementedError

    def _back(self, slots: Array) -> Array:
        """The inverse of `_there`: sends the outputs of experts back to the devices that sent the slots."""
        raise NotImplementedError
