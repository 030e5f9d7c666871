"""The layers of a backend on a mesh, the same for all: what experts of other devices are to compute goes there and comes back."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from moespec.backends.layer import with_shared
from moespec.backends.mesh import MeshSizes, Transport, check_whole_experts
from moespec.backends.optimizer import OptimizerConfig
from moespec.backends.routers import composed
from moespec.spec.errors import ShapeError
from moespec.spec.routers import Routers

__all__ = ["SplitExperts"]

Array = Any


class SplitExperts:
    """A backend whose experts are split over the axis `expert` of a mesh, and which otherwise is that of one device, `single`.

    Shapes: G groups of a device, E experts, C capacity, D width, n devices along `expert`.
    """

    single: Any
    sizes: MeshSizes
    transport: Transport = "model"
    """in what slots travel: the dtype of the model, or bfloat16, half the bytes of float32"""
    ROUTERS: Routers
    """the routers, composed of what this backend has; from `bind_routers`"""

    def __getattr__(self, name: str) -> Any:
        """Of the backend, what is the same on a mesh."""
        return getattr(type(self).single, name)

    def bind_routers(self) -> None:
        """Makes `ROUTERS`, for code that is compiled later: it reads an attribute there, and makes nothing."""
        self.ROUTERS = composed(self)

    def expert_load(self, scores: Array, *, choices: int, scope: str = "batch") -> Array:
        """As of one device; in the scope "global" the sum over all devices."""
        load = self.single.expert_load(scores, choices=choices, scope=scope)
        return self._total(load) if scope == "global" else load

    def moe_layer(self, tokens: Array, routing: Any, experts: Callable[[Array], Array]) -> Array:
        """As of one device, where `experts` are those that the device has: what is in their slots comes from all devices along
        `expert`, and goes back."""
        if self.sizes.expert == 1:
            return self.single.moe_layer(tokens, routing, experts)
        return self.single.moe_layer(
            tokens, routing, lambda slots: self._sent(self._back, experts(self._sent(self._there, slots)))
        )

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
        shared: Mapping[str, Array] | None = None,
        **options: str,
    ) -> Array:
        """As of one device, with the experts that the device has. Where experts are split all slots travel, the empty too."""
        expert_mlp = self.single.expert_mlp
        if self.sizes.expert == 1:
            return self.single.moe_mlp(tokens, routing, params, shared=shared, **options)
        y = self.moe_layer(tokens, routing, partial(expert_mlp, params=params, **options))
        return with_shared(y, expert_mlp, tokens, shared, **options)

    def rows_of_device(self, batch: int) -> int:
        """The rows of a batch for each device. Raises ShapeError unless they are as many for all."""
        if batch % self.sizes.devices:
            raise ShapeError(
                f"a batch of {batch} images cannot be split evenly among {self.sizes.devices} devices ({self.sizes})"
            )
        return batch // self.sizes.devices

    def outside_of_blocks(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """All parameters in full except those of blocks, which are gathered one block at a time."""
        return {name: tree if name == "blocks" else self.whole(tree) for name, tree in params.items()}

    def init_state(self, params: Mapping[str, Any], optimizer: OptimizerConfig) -> Any:
        """The state before the first step. Each leaf of `params` has a shape, and slices of it are read, as of a NumPy array."""
        return self.import_state({"params": params, "step": 0}, optimizer)

    def multi_hash_mlp(self, *arguments: Any, **options: Any) -> Array:
        """As of one device. Raises ConfigError where experts are split."""
        check_whole_experts("MultiHash", self.sizes)
        return self.single.multi_hash_mlp(*arguments, **options)

    def _total(self, array: Array) -> Array:
        """The sum over all devices, without a gradient."""
        raise NotImplementedError

    def _there(self, slots: Array) -> Array:
        """(G, E, C, D) of the device's groups to (n G, E / n, C, D) of its experts."""
        raise NotImplementedError

    def _back(self, slots: Array) -> Array:
        """The reverse."""
        raise NotImplementedError
