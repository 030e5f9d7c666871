"""The backend interface: the functions and types that routers, models and training require of a backend.

A backend is a module (`moespec.backends.jax`). It provides

* the building blocks of routers (`Blocks`), on arrays with a leading groups axis;
* the other specification functions that layers and models call, and the layer itself;
* the few array operations that models need;
* gradients, compilation and training, and conversion from and to NumPy.

`moespec.spec` documents each function under the same name. A backend also provides the specification's public functions
that are not listed here. `tests/backends/test_contract.py` checks that all three backends provide all of these.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from moespec.backends.blocks import Array, Blocks
from moespec.backends.mesh import MeshSizes
from moespec.backends.optimizer import OptimizerConfig
from moespec.spec.routers import Router
from moespec.spec.routing import Params, Routing

__all__ = ["Array", "Axis", "Backend", "LossFunction", "Metrics", "State", "StateUpdate", "Step", "filled_alone"]

Axis = int | tuple[int, ...]
State = Any
"""The training state. Only the functions of its backend look inside."""
Metrics = dict[str, Array]
LossFunction = Callable[..., tuple[Array, Metrics]]
"""`loss_function(params, batch) -> (loss, metrics)`, or of `(params, batch, average)`. Where routers keep a state, it
returns a third value: a nested dict of sums, which are added over parts and devices."""
StateUpdate = Callable[[Params, Any], Params]
"""`update_states(params, sums)` returns new values, as a nested dict, for leaves that the optimiser leaves alone: the router states."""
Step = Callable[[State, Any, float], tuple[State, Metrics]]
"""`step(state, batch, learning_rate) -> (state, metrics)`. A step may consume its input state."""


def filled_alone(tokens: int, choices: int, experts: int, capacity: int) -> bool:
    """True if `moe_mlp` computes only the filled slots of a routing with `choices` per token.

    `moe_mlp` skips empty slots if an expert has room for every token, or if there are more than twice as many slots as choices.
    """
    return capacity >= tokens or experts * capacity > 2 * tokens * choices


class BatchedRouting(Protocol):
    """The routing of several groups, stored by slot or, for an inherently dense routing, as full tensors."""

    def dense(self) -> Routing:
        """The tensors of the papers, each (groups, tokens, experts, capacity)."""


class Backend(Blocks, Protocol):
    """A backend. Arrays have a leading groups (or images) axis, except parameters and arrays documented as shared."""

    name: str
    ROUTERS: Mapping[str, Router[Any]]
    SlotRouting: Callable[..., BatchedRouting]
    SoftRouting: Callable[..., BatchedRouting]

    # The layer, and the operations that models use around the layer or instead of it.

    def moe_layer(self, tokens: Array, routing: BatchedRouting, experts: Callable[[Array], Array]) -> Array: ...
    def moe_mlp(
        self,
        tokens: Array,
        routing: BatchedRouting,
        params: Mapping[str, Array],
        *,
        shared: Mapping[str, Array] | None = None,
        gelu: str = "tanh",
        activation: str = "gelu",
    ) -> Array: ...
    def expert_mlp(
        self, inputs: Array, params: Mapping[str, Array], *, gelu: str = "tanh", activation: str = "gelu"
    ) -> Array: ...
    def collapse_metrics(self, routing: BatchedRouting) -> dict[str, Array]: ...
    def summed_dispatch(self, routing: BatchedRouting) -> Array: ...
    def cumulative_dispatch(self, routing: BatchedRouting) -> Array: ...
    def experts_per_token(self, routing: BatchedRouting) -> dict[str, Array]: ...
    def slot_similarity(self, slots: Array) -> Array: ...
    def multi_hash_mlp(
        self, tokens: Array, ids: Array, tables: Array, params: Mapping[str, Array], *, activation: str = "relu"
    ) -> Array: ...
    def rescale(self, x: Array, params: Mapping[str, Array]) -> Array: ...
    def gelu(self, x: Array, *, form: str = "tanh") -> Array: ...
    def linear(self, x: Array, kernel: Array, bias: Array | None = None, *, axes: int = 1) -> Array:
        """`x kernel + bias`: contracts the last `axes` axes of `x` with the first of `kernel`, (..., *A), (*A, *B) -> (..., *B)."""

    def layer_norm(self, x: Array, scale: Array, bias: Array | None = None, *, epsilon: float = 1e-6) -> Array: ...
    def attention(self, query: Array, key: Array, value: Array, *, causal: bool = False) -> Array: ...
    def convolution(self, images: Array, kernel: Array, bias: Array, *, stride: int = 1) -> Array: ...
    def patch_embed(self, images: Array, kernel: Array, bias: Array | None = None) -> Array: ...
    def embedding(self, ids: Array, table: Array) -> Array: ...
    def softmax_cross_entropy(self, logits: Array, targets: Array) -> Array: ...
    def sigmoid_cross_entropy(self, logits: Array, targets: Array) -> Array: ...

    # Losses of pairs, and batch normalisation. The rows come from the whole batch; there is no groups axis.

    def contrastive_loss(self, first: Array, second: Array, log_scale: Array | float) -> Array: ...
    def sigmoid_loss(self, first: Array, second: Array, log_scale: Array | float, bias: Array | float) -> Array: ...
    def moco_loss(
        self, first_query: Array, second_query: Array, first_key: Array, second_key: Array, *, temperature: float = 1.0
    ) -> Array: ...
    def momentum_update(self, average: Array, current: Array, decay: Array | float) -> Array: ...
    def batch_norm(self, x: Array, *, epsilon: float = 1e-5) -> Array: ...
    def local_entropy_loss(self, scores: Array) -> Array: ...
    def global_entropy_loss(self, scores: Array, *, threshold: float | None = None) -> Array: ...

    # Random numbers and dropout.

    def random_words(self, origin: Array, *, stream: int, rows: int, columns: int) -> Array: ...
    def unit_interval(self, words: Array) -> Array: ...
    def box_muller(self, uniform: Array) -> Array: ...
    def dropout(self, x: Array, draws: Array, *, rate: float) -> Array: ...

    # Token ids.

    def patch_codes(self, patches: Array, codebook: Array) -> Array: ...
    def previous_ids(self, ids: Array) -> Array: ...
    def pair_ids(self, first: Array, second: Array, *, vocabulary: int) -> Array: ...

    # Array operations.

    def arange(self, count: int, like: Array) -> Array:
        """`0, 1, ..., count - 1` on the device of `like`, in float64 if `like` is float64, else in float32."""

    def broadcast_to(self, x: Array, shape: tuple[int, ...]) -> Array:
        """`x` repeated to `shape` along its axes of length 1 and along new leading axes."""

    def cast(self, x: Array, dtype: str) -> Array:
        """`x` in the named dtype, which may be "int32"."""

    def round_to_bfloat16(self, x: Array) -> Array:
        """`x` rounded to the nearest bfloat16 numbers, in the dtype of `x`. Gradients are rounded too, except in NumPy."""

    def concatenate(self, arrays: Sequence[Array], axis: int) -> Array:
        """`arrays` joined along an existing axis."""

    def transpose(self, x: Array, axes: Sequence[int]) -> Array:
        """`x` with its axes in this order."""

    def einsum(self, subscripts: str, /, *arrays: Array) -> Array:
        """Einstein summation."""

    def mean(self, x: Array, axis: Axis | None = None) -> Array:
        """The mean over `axis`, or over all axes if None."""

    def sum(self, x: Array, axis: Axis | None = None) -> Array:
        """The sum over `axis`, or over all axes if None."""

    def softmax(self, x: Array, axis: int) -> Array:
        """The softmax `exp(x) / sum(exp(x))` along `axis`, in the dtype of `x`."""

    def relu(self, x: Array, /) -> Array: ...
    def cos(self, x: Array, /) -> Array: ...
    def sin(self, x: Array, /) -> Array: ...
    def tanh(self, x: Array, /) -> Array: ...

    # To and from NumPy.

    def from_numpy(self, tree: Any, dtype: str | None = None) -> Any:
        """Copies the arrays of nested dicts, lists and tuples to this backend; None stays None.

        `dtype` ("float64", "float32", "bfloat16") applies to floating arrays; None keeps the dtype of each array.
        """

    def to_numpy(self, tree: Any) -> Any:
        """The reverse of `from_numpy`. bfloat16 becomes float32, because NumPy has no bfloat16."""

    # Several devices and processes. `OnMesh` implements these functions on a mesh, `single_device` on one device (mostly as identities).

    sizes: MeshSizes
    process: int
    processes: int

    def exchanged(self, value: str) -> list[str]:
        """Waits for all processes, and returns their texts in process order."""

    def rows(self, batch: int) -> range:
        """The rows of a batch that this process passes to `put`."""

    def put(self, tree: Any) -> Any:
        """Converts the rows of this process, NumPy arrays in nested dicts, to the input of a step or a compiled forward pass."""

    def whole(self, params: Any) -> Any:
        """The parameters of a block, gathered from the devices that hold parts of them."""

    def over_devices(self, by_image: Array, means: Metrics) -> tuple[Array, Metrics]:
        """Gathers the rows of all images from all devices, and averages `means` over the devices."""

    # Gradients and training.

    def recomputed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `function` without stored intermediate results; the backward pass recomputes them."""

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, compiled. The function must be pure."""

    def value_and_grad(
        self, function: Callable[..., tuple[Array, Any]]
    ) -> Callable[..., tuple[tuple[Array, Any], Params]]:
        """Turns `function(params, *args) -> (loss, aux)` into a function that returns `((loss, aux), gradient)`."""

    def init_state(self, params: Params, optimizer: OptimizerConfig) -> State:
        """Returns the training state before the first step. Copies the parameters."""

    def state_params(self, state: State) -> Params:
        """Returns the parameters for a forward pass. They are valid until a step takes the state."""

    def state_average(self, state: State) -> Params:
        """Returns the moving averages of the parameters, and unaveraged parameters unchanged. Valid until a step takes the state."""

    def make_step(
        self,
        loss_function: LossFunction,
        optimizer: OptimizerConfig,
        *,
        accumulate: int = 1,
        averaged: bool = False,
        update_states: StateUpdate | None = None,
    ) -> Step:
        """One update of the optimiser (see `moespec.backends.optimizer`), compiled.

        averaged: if true, the loss also takes `state_average`, as a constant, after the parameters and the batch. update_states: takes the
        parameters before the update, and the sums that the loss returns, added over all parts and devices.

        The batch is split into `accumulate` equal parts along the leading axis of its arrays; gradients and metrics are
        averaged. The step adds "loss" and "grad_norm", the global norm before the clip, to the metrics. Raises
        ConfigError for `accumulate < 1` and ShapeError for a batch that does not split.
        """

    def export_state(self, state: State) -> dict[str, Any]:
        """The state as nested dicts of NumPy arrays, bit for bit: `params`, the int `step`, and the optimiser's slots
        (see `OptimizerConfig.state_shapes`)."""

    def finite_state(self, state: State) -> bool:
        """True if all numbers of the state on this process are finite. Copies only one number from the device."""

    def import_state(self, exported: Mapping[str, Any], optimizer: OptimizerConfig) -> State:
        """Restores a state that `export_state` of any backend exported."""
