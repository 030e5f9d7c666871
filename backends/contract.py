"""What a backend is: what routers, models and training ask of it, with the types.

A backend is a module (`moespec.backends.jax`). It has

* what routers are made of (`Blocks`), on arrays with a leading groups axis;
* the other functions of the specification that layers and models call, and the layer itself;
* the few array operations that models need;
* gradients, compilation and training, and moving arrays to and from NumPy.

What a function computes is said in `moespec.spec`, by the function of the same name. A backend has those of its public
functions that are not listed here too: `tests/backends/test_contract.py` holds the three of them to both.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from moespec.backends.blocks import Array, Blocks
from moespec.backends.mesh import MeshSizes
from moespec.backends.optimizer import OptimizerConfig
from moespec.spec.routers import Router
from moespec.spec.routing import Params, Routing

__all__ = ["Array", "Axis", "Backend", "LossFunction", "Metrics", "Renewal", "State", "Step", "filled_alone"]

Axis = int | tuple[int, ...]
State = Any
"""What training carries from step to step; only the functions of its backend look inside."""
Metrics = dict[str, Array]
LossFunction = Callable[..., tuple[Array, Metrics]]
"""`loss_function(params, batch) -> (loss, metrics)`, or of `(params, batch, average)`; with sums that add as a third, a nested dict,
where routers keep a state."""
Renewal = Callable[[Params, Any], Params]
"""`renew(params, sums)` gives new values of what no optimiser trains, as a nested dict: the states of routers after a step."""
Step = Callable[[State, Any, float], tuple[State, Metrics]]
"""`step(state, batch, learning_rate) -> (state, metrics)`; it may use up the state that it is given."""


def filled_alone(tokens: int, choices: int, experts: int, capacity: int) -> bool:
    """Whether `moe_mlp` computes the filled slots alone, of a routing by the `choices` of each token.

    It does where an expert has room for every token, or where there are more than twice as many slots as choices.
    """
    return capacity >= tokens or experts * capacity > 2 * tokens * choices


class BatchedRouting(Protocol):
    """The routing of several groups: a record by slot, or one that is dense by nature."""

    def dense(self) -> Routing:
        """The tensors of the papers, each (groups, tokens, experts, capacity)."""


class Backend(Blocks, Protocol):
    """A backend. Arrays have a leading groups (or images) axis, except parameters and what is said to be shared."""

    name: str
    ROUTERS: Mapping[str, Router[Any]]
    SlotRouting: Callable[..., BatchedRouting]
    SoftRouting: Callable[..., BatchedRouting]

    # The layer, and what models have instead of it or around it.

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
        """`x kernel + bias`: the last `axes` axes of `x` with the first of `kernel`, (..., *A), (*A, *B) -> (..., *B)."""

    def layer_norm(self, x: Array, scale: Array, bias: Array | None = None, *, epsilon: float = 1e-6) -> Array: ...
    def attention(self, query: Array, key: Array, value: Array, *, causal: bool = False) -> Array: ...
    def convolution(self, images: Array, kernel: Array, bias: Array, *, stride: int = 1) -> Array: ...
    def patch_embed(self, images: Array, kernel: Array, bias: Array | None = None) -> Array: ...
    def embedding(self, ids: Array, table: Array) -> Array: ...
    def softmax_cross_entropy(self, logits: Array, targets: Array) -> Array: ...
    def sigmoid_cross_entropy(self, logits: Array, targets: Array) -> Array: ...

    # Training by pairs: the rows are those of the whole batch, and have no groups axis.

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
        """`0, 1, ..., count - 1` in float32, in float64 if `like` is, on its device."""

    def broadcast_to(self, x: Array, shape: tuple[int, ...]) -> Array:
        """`x` repeated along its axes of length 1, and new leading ones, to `shape`."""

    def cast(self, x: Array, dtype: str) -> Array:
        """`x` in the dtype of that name, "int32" too."""

    def round_to_bfloat16(self, x: Array) -> Array:
        """The nearest numbers that bfloat16 has, in the dtype of `x`; gradients are rounded too, but for NumPy's."""

    def concatenate(self, arrays: Sequence[Array], axis: int) -> Array:
        """`arrays` joined along an axis that they have."""

    def transpose(self, x: Array, axes: Sequence[int]) -> Array:
        """`x` with its axes in this order."""

    def einsum(self, subscripts: str, /, *arrays: Array) -> Array:
        """Einstein summation."""

    def mean(self, x: Array, axis: Axis | None = None) -> Array:
        """The mean over the axes, over all if None."""

    def sum(self, x: Array, axis: Axis | None = None) -> Array:
        """The sum over the axes, over all if None."""

    def softmax(self, x: Array, axis: int) -> Array:
        """`exp(x) / sum(exp(x))` along `axis`, in the dtype of `x`."""

    def relu(self, x: Array, /) -> Array: ...
    def cos(self, x: Array, /) -> Array: ...
    def sin(self, x: Array, /) -> Array: ...
    def tanh(self, x: Array, /) -> Array: ...

    # To and from NumPy.

    def from_numpy(self, tree: Any, dtype: str | None = None) -> Any:
        """Copies of the arrays of nested dicts, lists and tuples as arrays of this backend; None stays None.

        `dtype` is that of the floating arrays ("float64", "float32", "bfloat16"), their own if None.
        """

    def to_numpy(self, tree: Any) -> Any:
        """The reverse; bfloat16, which NumPy does not have, becomes float32."""

    # On several devices of several processes (`OnMesh` of a backend); on one (`one_device`), what is given is returned.

    sizes: MeshSizes
    process: int
    processes: int

    def exchanged(self, value: str) -> list[str]:
        """The texts of all processes, in their order; it waits for all."""

    def rows(self, batch: int) -> range:
        """The rows of a batch that this process gives to `put`."""

    def put(self, tree: Any) -> Any:
        """These rows, NumPy arrays in nested dicts, as what a step, or a compiled forward pass, takes."""

    def whole(self, params: Any) -> Any:
        """The parameters of a block, with those that devices have parts of gathered."""

    def over_devices(self, by_image: Array, means: Metrics) -> tuple[Array, Metrics]:
        """The rows of the images of all devices, and the means over the devices of means over the images of one."""

    # Gradients and training.

    def recomputed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, of whose results inside nothing is kept for the backward pass, which computes them anew."""

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, compiled, for pure functions."""

    def value_and_grad(
        self, function: Callable[..., tuple[Array, Any]]
    ) -> Callable[..., tuple[tuple[Array, Any], Params]]:
        """For `function(params, *args) -> (loss, aux)`: a function that returns `((loss, aux), gradient)`."""

    def init_state(self, params: Params, optimizer: OptimizerConfig) -> State:
        """The state before the first step. The parameters are copied."""

    def state_params(self, state: State) -> Params:
        """The parameters, for a forward pass; valid until the state is given to a step."""

    def state_average(self, state: State) -> Params:
        """The parameters with their average in place of those that have one; valid as long as `state_params` is."""

    def make_step(
        self,
        loss_function: LossFunction,
        optimizer: OptimizerConfig,
        *,
        accumulate: int = 1,
        averaged: bool = False,
        renew: Renewal | None = None,
    ) -> Step:
        """One update of the optimiser (see `moespec.backends.optimizer`), compiled.

        averaged: the loss is one of the parameters, the batch, and what `state_average` gives, which is a constant. renew: is given
        the parameters before the update, and the sums that the loss returns, over all parts and devices.

        The batch is split into `accumulate` equal parts along the leading axis of its arrays; gradients and metrics are
        averaged. The metrics have "loss" and "grad_norm", the global norm before the clip, added to them. Raises
        ConfigError for `accumulate < 1`, ShapeError for a batch that does not split.
        """

    def export_state(self, state: State) -> dict[str, Any]:
        """The state as nested dicts of NumPy arrays, bit for bit: `params`, the int `step`, and what is kept of
        the parameters: the slots of `OptimizerConfig.state_shapes`."""

    def finite_state(self, state: State) -> bool:
        """Whether all numbers of `export_state` are finite, of those that this process has. One number leaves the device."""

    def import_state(self, exported: Mapping[str, Any], optimizer: OptimizerConfig) -> State:
        """The state that `export_state`, of any backend, made `exported` of."""
