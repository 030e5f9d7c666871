"""The backend interface: the functions and types that routers, models and training require of a backend.

A backend is a module such as `moespec.backends.jax`. A backend provides

* the building blocks of routers (`Blocks`), on arrays with a leading groups axis;
* the other specification functions that layers and models call, and the layer itself;
* the few array operations that models need;
* gradients, compilation and training, and conversion from and to NumPy.

`moespec.spec` documents the specification functions under the same names. A backend also provides the other public functions of
the specification. `tests/backends/test_contract.py` checks that all three backends provide all of these functions.
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
"""The training state, whose structure is private to its backend."""
Metrics = dict[str, Array]
LossFunction = Callable[..., tuple[Array, Metrics]]
"""`loss_function(params, batch) -> (loss, metrics)`, or a function of `(params, batch, average)`. If routers keep a state, the function
also returns a nested dict of sums. The step adds these sums over batch parts and devices."""
StateUpdate = Callable[[Params, Any], Params]
"""`update_states(params, sums)` returns the new router states, as a nested dict. The optimiser does not change router states."""
Step = Callable[[State, Any, float], tuple[State, Metrics]]
"""`step(state, batch, learning_rate) -> (state, metrics)`. A step may invalidate its input state."""


def filled_alone(tokens: int, choices: int, experts: int, capacity: int) -> bool:
    """True if `moe_mlp` computes only the filled slots of a routing with `choices` choices per token.

    `moe_mlp` skips empty slots if each expert has a slot for every token, or if there are more than twice as many slots as choices.
    """
    return capacity >= tokens or experts * capacity > 2 * tokens * choices


class BatchedRouting(Protocol):
    """The routing of several groups, stored by slot or, if the routing is inherently dense, as full tensors."""

    def dense(self) -> Routing:
        """The dispatch and combine tensors of the papers, each (groups, tokens, experts, capacity)."""


class Backend(Blocks, Protocol):
    """A backend. All arrays have a leading axis of groups or images, except parameters and arrays that are documented as shared."""

    name: str
    ROUTERS: Mapping[str, Router[Any]]
    SlotRouting: Callable[..., BatchedRouting]
    SoftRouting: Callable[..., BatchedRouting]

    # The layer, and the operations that models use around the layer or in place of the layer.

    def moe_layer(self, tokens: Array, routing: BatchedRouting, experts: Callable[[Array], Array]) -> Array: ...
    def moe_mlp(
        self,
        tokens: Array,
        routing: BatchedRouting,
        params: Mapping[str, Array],
        *,
        shared: Mapping[str, Array] | None = None,
        latent: Mapping[str, Array] | None = None,
        constants: Mapping[str, Array] | None = None,
        copies: int = 0,
        zeros: int = 0,
        weights_on: str = "output",
        gelu: str = "tanh",
        activation: str = "gelu",
        norm_epsilon: float = 1e-6,
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
        """Computes `x kernel + bias`, where `axes` is the number of contracted axes *A: x (..., *A), kernel (*A, *B) -> (..., *B)."""

    def layer_norm(self, x: Array, scale: Array, bias: Array | None = None, *, epsilon: float = 1e-6) -> Array: ...
    def attention(self, query: Array, key: Array, value: Array, *, causal: bool = False) -> Array: ...
    def convolution(self, images: Array, kernel: Array, bias: Array, *, stride: int = 1) -> Array: ...
    def patch_embed(self, images: Array, kernel: Array, bias: Array | None = None) -> Array: ...
    def embedding(self, ids: Array, table: Array) -> Array: ...
    def softmax_cross_entropy(self, logits: Array, targets: Array) -> Array: ...
    def sigmoid_cross_entropy(self, logits: Array, targets: Array) -> Array: ...

    # Losses that compare pairs of rows, and batch normalisation. The arrays contain the rows of the whole batch, without a groups axis.

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
        """Broadcasts `x` to `shape` along axes of length 1 and along new leading axes."""

    def cast(self, x: Array, dtype: str) -> Array:
        """Converts `x` to the dtype with this name, for example "bfloat16" or "int32"."""

    def round_to_bfloat16(self, x: Array) -> Array:
        """Rounds `x` to the nearest bfloat16 numbers and keeps the dtype. All backends except NumPy also round the gradients."""

    def concatenate(self, arrays: Sequence[Array], axis: int) -> Array:
        """Joins arrays along an existing axis."""

    def transpose(self, x: Array, axes: Sequence[int]) -> Array:
        """Permutes the axes of `x` to the order `axes`."""

    def einsum(self, subscripts: str, /, *arrays: Array) -> Array:
        """Einstein summation."""

    def mean(self, x: Array, axis: Axis | None = None) -> Array:
        """The mean over `axis`, or over all axes if `axis` is None."""

    def sum(self, x: Array, axis: Axis | None = None) -> Array:
        """The sum over `axis`, or over all axes if `axis` is None."""

    def softmax(self, x: Array, axis: int) -> Array:
        """The softmax `exp(x) / sum(exp(x))` along `axis`, in the dtype of `x`."""

    def relu(self, x: Array, /) -> Array: ...
    def cos(self, x: Array, /) -> Array: ...
    def sin(self, x: Array, /) -> Array: ...
    def tanh(self, x: Array, /) -> Array: ...

    # To and from NumPy.

    def from_numpy(self, tree: Any, dtype: str | None = None) -> Any:
        """Copies the NumPy arrays of nested dicts, lists and tuples to this backend. None stays None.

        `dtype` ("float64", "float32", "bfloat16") applies to floating-point arrays. `dtype=None` keeps the dtype of each array.
        """

    def to_numpy(self, tree: Any) -> Any:
        """Copies arrays to NumPy, the inverse of `from_numpy`. bfloat16 arrays become float32, because NumPy has no bfloat16."""

    # Several devices and processes. `OnMesh` implements this section for a mesh, and `single_device` for one device.

    sizes: MeshSizes
    process: int
    processes: int

    def exchanged(self, value: str) -> list[str]:
        """Sends `value` to all processes, and returns the values of all processes in process order."""

    def rows(self, batch: int) -> range:
        """The indices of the batch rows that this process passes to `put`."""

    def put(self, tree: Any) -> Any:
        """Converts the NumPy rows of this process, in nested dicts, to the input of a step or of a compiled forward pass."""

    def whole(self, params: Any) -> Any:
        """Gathers the complete parameters of a block from the devices that hold shards of these parameters."""

    def over_devices(self, by_image: Array, means: Metrics) -> tuple[Array, Metrics]:
        """Gathers the rows of all images from all devices, and averages `means` over the devices."""

    # Gradients and training.

    def recomputed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Applies activation checkpointing: the activations of `function` are not stored, and the backward pass recomputes them."""

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Compiles a pure function."""

    def value_and_grad(
        self, function: Callable[..., tuple[Array, Any]]
    ) -> Callable[..., tuple[tuple[Array, Any], Params]]:
        """Turns `function(params, *args) -> (loss, aux)` into a function that returns `((loss, aux), gradient)`."""

    def init_state(self, params: Params, optimizer: OptimizerConfig) -> State:
        """Returns the training state before the first step, with copies of the parameters."""

    def state_params(self, state: State) -> Params:
        """Returns the parameters for a forward pass. The parameters are valid until the next step consumes the state."""

    def state_average(self, state: State) -> Params:
        """Returns all parameters, each replaced by its moving average if it has one. The result is valid until the next step."""

    def make_step(
        self,
        loss_function: LossFunction,
        optimizer: OptimizerConfig,
        *,
        accumulate: int = 1,
        averaged: bool = False,
        update_states: StateUpdate | None = None,
    ) -> Step:
        """Returns a compiled training step, which updates the parameters once (see `moespec.backends.optimizer`).

        averaged: if true, the loss function gets `state_average` as its third argument, without gradient. update_states: computes the new
        router states from the parameters before the update and from the loss function's sums over all batch parts and devices.

        The step splits the batch into `accumulate` equal parts along the leading axis, and averages the gradients and metrics of the
        parts. The step adds "loss" and "grad_norm", the global norm of the gradient before clipping, to the metrics. Raises
        ConfigError for `accumulate < 1`, and ShapeError for a batch that cannot be split into equal parts.
        """

    def export_state(self, state: State) -> dict[str, Any]:
        """Exports the state bit for bit as nested dicts of NumPy arrays. The keys are `params`, `step` (an int) and the names of the
        optimiser's slots (see `OptimizerConfig.state_shapes`)."""

    def finite_state(self, state: State) -> bool:
        """True if all numbers of the state on this process are finite. The check copies only one number from the device."""

    def import_state(self, exported: Mapping[str, Any], optimizer: OptimizerConfig) -> State:
        """Restores a state that `export_state` of any backend exported."""
