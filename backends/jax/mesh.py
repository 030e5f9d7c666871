"""Training on a mesh of devices. Each device runs the single-device program on its images, and `OnMesh` adds the communication.

`jax.shard_map` maps the program over the devices. The optimiser updates the full arrays outside this program. XLA
partitions the update, in which only norms need communication between devices.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import mesh_utils, multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding

from moespec.backends import jax as single
from moespec.backends.expert_parallel import SplitExperts
from moespec.backends.jax import private
from moespec.backends.jax.arrays import Array
from moespec.backends.jax.exchange import back, there
from moespec.backends.jax.optimizers import Leaves, by_leaf, imported, transformation
from moespec.backends.jax.training import (
    Batch,
    LossFunction,
    Metrics,
    Params,
    Results,
    StateUpdate,
    Static,
    Step,
    TrainState,
    compiled_step,
    export_leaves,
    gradients_of,
    split_params,
)
from moespec.backends.mesh import AXES, MeshSizes, Shards, Split, Transport, axes_of_slot, split_axes, start_of
from moespec.backends.optimizer import OptimizerConfig
from moespec.backends.processes import Process
from moespec.backends.pytrees import Path, flatten, leaves, unflatten
from moespec.spec.errors import ConfigError

__all__ = ["OnMesh", "devices", "join", "leave"]

# JAX does not declare the types of its sharding functions and collective operations.
untyped: Any = jax
PartitionSpec, collective = untyped.sharding.PartitionSpec, untyped.lax

ROWS, SAME = PartitionSpec(AXES), PartitionSpec()
"""The specs of an array with one row per image, and of an array that is the same on all devices."""


@partial(jax.tree_util.register_dataclass, data_fields=("array",), meta_fields=("axis",))
class _Part:
    """A device's shard of a parameter whose axis `axis` is split over the mesh axis `fsdp`."""

    def __init__(self, array: Array, axis: int) -> None:
        self.array, self.axis = array, axis


def join(process: Process, address: str | None = None, timeout: float = 10.0) -> None:
    """Connects all processes, so that `jax.devices()` includes the devices of all processes. Call this function before using JAX.

    address: the IP address at which other processes reach this machine. By default, gloo uses the address of the host name,
        which may be 127.0.1.1.
    timeout: seconds without a heartbeat after which the watchdog declares a process lost. JAX's own timeout is ten times as long.

    Raises JAX's RuntimeError if another process does not connect in time.
    """
    if untyped.config.jax_platforms == "cpu":
        untyped.config.update("jax_cpu_collectives_implementation", "gloo")
        if address:
            private.reach_at(address)
    seconds = math.ceil(10 * timeout)
    jax.distributed.initialize(process.address, process.count, process.index, heartbeat_timeout_seconds=seconds)


def devices() -> int:
    """Returns the number of devices of all processes. Raises ConfigError if JAX cannot use the platforms in JAX_PLATFORMS."""
    try:
        return int(jax.device_count())
    except (RuntimeError, AssertionError) as error:  # JAX raises AssertionError if a platform has no device
        said = str(error).partition(". (set JAX_PLATFORMS")[0] or "this platform has no device or no plugin"
        asked = untyped.config.jax_platforms
        raise ConfigError(f"JAX_PLATFORMS={asked!r}: {said}; set it to cpu, or unset it to use any device") from error


def leave() -> None:
    """Waits for the other processes, and then disconnects."""
    untyped.distributed.shutdown()


class OnMesh(SplitExperts):
    """The JAX backend for models on a mesh of all devices of all processes.

    A state consists of global arrays that are sharded over the devices. The arguments of a step are a state and a batch from `put`. The
    arguments of a function from `compile` are the parameters of a state and an array from `put`.
    """

    single = single

    def __init__(
        self, sizes: MeshSizes, devices: Sequence[jax.Device] | None = None, *, transport: Transport = "model"
    ) -> None:
        """devices: the devices of the mesh (default: all devices). They may be devices of a topology description, without hardware.
        transport: see `SplitExperts`."""
        there = jax.device_count() if devices is None else len(devices)
        if sizes.devices != there:
            raise ConfigError(f"the mesh ({sizes}) needs {sizes.devices} devices, but JAX has {there}")
        self.sizes, self.transport = sizes, transport
        # If the chips form a torus, a mesh axis may cover only a part of a physical axis.
        placed = mesh_utils.create_device_mesh(sizes.shape, devices, allow_split_physical_axes=True)
        self.mesh = Mesh(placed, AXES, axis_types=(AxisType.Auto,) * len(AXES))
        self.bind_routers()

    # The exchange.

    def _there(self, slots: Array) -> Array:
        """Sends the slots (G, E, C, D) of this device's groups to the devices that hold the experts. Returns (n G, E / n, C, D)."""
        return there(slots, "expert")

    def _back(self, slots: Array) -> Array:
        return back(slots, "expert")

    def _total(self, array: Array) -> Array:
        total: Array = collective.psum(array, AXES)
        return total

    def whole(self, params: Any) -> Any:
        """Gathers parameters that are split over `fsdp`, and returns complete parameters."""
        return jax.tree.map(
            lambda leaf: (
                lax.all_gather(leaf.array, "fsdp", axis=leaf.axis, tiled=True) if isinstance(leaf, _Part) else leaf
            ),
            params,
            is_leaf=lambda leaf: isinstance(leaf, _Part),
        )

    def over_devices(self, by_image: Array, means: Metrics) -> tuple[Array, Metrics]:
        """Gathers the rows of all devices, and averages the metrics over all devices."""
        return lax.all_gather(by_image, AXES, tiled=True), collective.pmean(means, AXES)

    # Processes.

    @property
    def process(self) -> int:
        """The index of this process."""
        return int(jax.process_index())

    @property
    def processes(self) -> int:
        """The number of processes."""
        return int(jax.process_count())

    def exchanged(self, value: str) -> list[str]:
        """Sends `value` to all processes, and returns the values of all processes in process order."""
        if self.processes == 1:
            return [value]
        own = np.frombuffer(value.encode(), np.uint8)
        sizes = multihost_utils.process_allgather(np.array([own.size]))[:, 0]
        padded = np.zeros(max(sizes), np.uint8)
        padded[: own.size] = own
        rows = multihost_utils.process_allgather(padded)
        return [rows[index, :size].tobytes().decode() for index, size in enumerate(sizes)]

    # Arrays.

    def rows(self, batch: int) -> range:
        """The indices of the batch rows that this process passes to `put`."""
        self.rows_of_device(batch)
        where = NamedSharding(self.mesh, ROWS).addressable_devices_indices_map((batch,)).values()
        bounds = [index[0].indices(batch) for index in where if index]
        return range(min(start for start, _, _ in bounds), max(stop for _, stop, _ in bounds))

    def put(self, tree: Any) -> Any:
        """Converts the NumPy rows of this process to arrays of the whole batch. A scalar must be equal on all processes."""

        def spread(leaf: Any) -> Array:
            where = NamedSharding(self.mesh, SAME if np.ndim(leaf) == 0 else ROWS)
            array: Array = untyped.make_array_from_process_local_data(where, np.asarray(leaf))
            return array

        return jax.tree.map(spread, tree)

    def _sharding(self, split: Split) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec(*split))

    @property
    def by_image(self) -> NamedSharding:
        """The sharding of an array with one row per image."""
        return NamedSharding(self.mesh, ROWS)

    # Training.

    def import_state(self, exported: Mapping[str, Any], optimizer: OptimizerConfig) -> TrainState:
        """Restores a state that `export_state` of any backend exported. Each process reads only the slices that its devices need."""
        wanted = self.state_shapes(exported["params"], optimizer)
        placed = flatten(wanted.params)
        params = {path: _like(leaf, placed[path]) for path, leaf in leaves(exported["params"])}
        trained, _ = split_params(unflatten(params), optimizer)
        shardings = jax.tree.map(lambda leaf: leaf.sharding, wanted.optimizer)
        zeros = jax.jit(transformation(optimizer).init, out_shardings=shardings)(trained)
        step = int(exported["step"])
        slots = {name: dict(leaves(tree)) for name, tree in exported.items() if name not in ("params", "step")}
        average = slots.pop("ema", trained)
        return TrainState(
            unflatten(params),
            imported(zeros, slots, step, array=_like),
            {path: _like(average[path], leaf) for path, leaf in wanted.average.items()},
            _like(np.asarray(step), wanted.step),
            wanted.config,
        )

    def state_shapes(self, params: Mapping[str, Any], optimizer: OptimizerConfig) -> TrainState:
        """Returns a state with shapes, dtypes and shardings instead of arrays. Each leaf of `params` must have a
        shape. A leaf without a dtype counts as float32."""
        shapes = {path: tuple(leaf.shape) for path, leaf in leaves(params)}
        how = {path: split_axes(path, shape, self.sizes) for path, shape in shapes.items()}

        def placed(shape: tuple[int, ...], dtype: Any, split: Split) -> Any:
            return untyped.ShapeDtypeStruct(shape, dtype, sharding=self._sharding(split))

        def of_slot(slot: str | None, path: Path | None, leaf: Any) -> Any:
            split: Split = ()
            if path is not None and slot is not None and slot in optimizer.slots(path, shapes[path]):
                split = axes_of_slot(slot, shapes[path], how[path], optimizer.factored_from)
            return placed(leaf.shape, leaf.dtype, split)

        placements = {
            path: placed(shapes[path], jax.dtypes.canonicalize_dtype(getattr(leaf, "dtype", np.float32)), how[path])
            for path, leaf in leaves(params)
        }
        trained, _ = split_params(unflatten(placements), optimizer)
        moments = by_leaf(jax.eval_shape(transformation(optimizer).init, trained), of_slot)
        average = trained if optimizer.ema is not None else {}
        return TrainState(unflatten(placements), moments, average, placed((), jnp.int32, ()), Static(optimizer))

    def export_state(self, state: TrainState) -> dict[str, Any]:
        """Exports the shards of the state that this process must save, as `Shards` instead of arrays."""
        return export_leaves(state, _pieces)

    def make_step(
        self,
        loss_function: LossFunction,
        optimizer: OptimizerConfig,
        *,
        accumulate: int = 1,
        averaged: bool = False,
        update_states: StateUpdate | None = None,
    ) -> Step:
        """Returns the training step for a batch that `put` has sharded. The loss and the metrics are means over groups and images.

        A single reduction sums the loss, the metrics and the gradients of parameters that are not split.
        """

        def loss(params: Params, batch: Batch, *average: Params) -> Any:
            return loss_function(self.outside_of_blocks(params), batch, *map(self.outside_of_blocks, average))

        of_device = gradients_of(loss, accumulate)

        def gradients(trained: Leaves, frozen: Leaves, batch: Batch, *average: Leaves) -> tuple[Leaves, Results]:
            how = {path: split_axes(path, leaf.shape, self.sizes) for path, leaf in (trained | frozen).items()}
            specs = {path: PartitionSpec(*split) for path, split in how.items()}

            def local(trained: Leaves, frozen: Leaves, batch: Batch, *average: Leaves) -> tuple[Leaves, Results]:
                marked = [_marked(leaves, how) for leaves in average]
                slopes, found = of_device(_marked(trained, how), _marked(frozen, how), batch, *marked)
                slopes = {path: leaf.array if isinstance(leaf, _Part) else leaf for path, leaf in slopes.items()}
                return self._means(slopes, found, how)

            spread = jax.shard_map(
                local,
                mesh=self.mesh,
                in_specs=(
                    {path: specs[path] for path in trained},
                    {path: specs[path] for path in frozen},
                    jax.tree.map(lambda leaf: ROWS if leaf.ndim else SAME, batch),
                    *(specs for _ in average),
                ),
                out_specs=({path: specs[path] for path in trained}, SAME),
                check_vma=False,
            )
            result: tuple[Leaves, Results] = spread(trained, frozen, batch, *average)
            return result

        return compiled_step(gradients, optimizer, averaged=averaged, update=update_states)

    def _means(self, gradients: Leaves, found: Results, how: Mapping[Path, Split]) -> tuple[Leaves, Results]:
        """Averages gradients and metrics over all devices, and adds up `sums`. Only devices with the same shard add up gradients."""
        # A gradient through a gather or an all-to-all is already a sum over the devices along the mesh axis of this operation.
        together: dict[tuple[str, ...], list[Path]] = {AXES: []}  # The metrics are summed over `AXES`.
        for path in gradients:
            together.setdefault(tuple(axis for axis in AXES if axis not in how[path]), []).append(path)
        summed: Leaves = {}
        for axes, paths in together.items():
            part: Any = ({path: gradients[path] for path in paths}, found if axes == AXES else ())
            slopes, totals = collective.psum(part, axes) if axes else part
            summed |= slopes
            found = totals or found
        count, (metrics, sums) = self.sizes.devices, found
        gradients = {path: summed[path] / count for path in gradients}
        return gradients, ({name: value / count for name, value in metrics.items()}, sums)

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Compiles `function(params, rows)` for the parameters of a state and an array from `put` with one row per image.

        `function` must return the same result on all devices, for example a result of `over_devices`.
        """

        def run(params: Params, rows: Array) -> Any:
            flat_params = flatten(params)
            how = {path: split_axes(path, leaf.shape, self.sizes) for path, leaf in flat_params.items()}

            def local(params: Leaves, rows: Array) -> Any:
                return function(self.outside_of_blocks(unflatten(_marked(params, how))), rows)

            specs = {path: PartitionSpec(*split) for path, split in how.items()}
            return jax.shard_map(local, mesh=self.mesh, in_specs=(specs, ROWS), out_specs=SAME, check_vma=False)(
                flat_params, rows
            )

        return jax.jit(run)


def _marked(flat: Leaves, how: Mapping[Path, Split]) -> dict[Path, Any]:
    """Wraps each leaf that is split over `fsdp` in `_Part`, and returns all leaves."""
    return {path: _Part(leaf, how[path].index("fsdp")) if "fsdp" in how[path] else leaf for path, leaf in flat.items()}


def _like(source: Any, like: Any) -> Array:
    """Creates an array from slices of `source`, with the dtype and sharding of `like`. Returns a copy if `source` is a JAX array."""
    if isinstance(source, jax.Array):
        return jnp.copy(source)

    def part(index: tuple[slice, ...] | None) -> Any:
        return np.array(source[index or ()], like.dtype, order="C")

    return jax.make_array_from_callback(tuple(source.shape), like.sharding, part)


def _pieces(leaf: Array) -> Shards:
    """Returns the shards of an array that this process saves. It saves only the first replica of each shard."""
    shards = [(shard.index, np.array(shard.data)) for shard in leaf.addressable_shards if shard.replica_id == 0]
    return Shards(tuple(leaf.shape), np.dtype(leaf.dtype), tuple((start_of(index), array) for index, array in shards))
