"""The array namespace that formulas use: operations that each framework provides in one module.

Formulas also use the operations that all arrays support: arithmetic, comparisons, slicing, `.shape`, `.ndim`, `.dtype`
and `.reshape`. A function named after a NumPy function returns the same result as that function. `axis` is an axis or a tuple of axes.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar


class Arithmetic(Protocol):
    """The operations that arrays of all frameworks support."""

    @property
    def shape(self) -> Any: ...
    @property
    def ndim(self) -> int: ...
    @property
    def dtype(self) -> Any: ...
    def reshape(self, *shape: Any) -> Any: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: Any, /) -> Any: ...
    def __neg__(self) -> Any: ...
    def __invert__(self) -> Any: ...
    def __add__(self, other: Any, /) -> Any: ...
    def __radd__(self, other: Any, /) -> Any: ...
    def __sub__(self, other: Any, /) -> Any: ...
    def __rsub__(self, other: Any, /) -> Any: ...
    def __mul__(self, other: Any, /) -> Any: ...
    def __rmul__(self, other: Any, /) -> Any: ...
    def __truediv__(self, other: Any, /) -> Any: ...
    def __rtruediv__(self, other: Any, /) -> Any: ...
    def __floordiv__(self, other: Any, /) -> Any: ...
    def __matmul__(self, other: Any, /) -> Any: ...
    def __mod__(self, other: Any, /) -> Any: ...
    def __and__(self, other: Any, /) -> Any: ...
    def __or__(self, other: Any, /) -> Any: ...
    def __lt__(self, other: Any, /) -> Any: ...
    def __le__(self, other: Any, /) -> Any: ...
    def __gt__(self, other: Any, /) -> Any: ...
    def __ge__(self, other: Any, /) -> Any: ...
    def __eq__(self, other: Any, /) -> Any: ...


Array = TypeVar("Array", bound=Arithmetic)
"""The framework's arrays."""
BySlot = TypeVar("BySlot", bound=Any)
"""The framework's record of a sparse routing, which is stored by slot."""
Dense = TypeVar("Dense", bound=Any)
"""The framework's record of a dense routing."""
Axis = int | tuple[int, ...]
Function = TypeVar("Function", bound=Callable[..., Any])


class Namespace(Protocol[Array]):
    """The array namespace of a framework, a module that provides these methods as functions."""

    # Precision.

    def promote(self, x: Array, /) -> Array:
        """Converts `x` to float32 unless the dtype of `x` is float64."""

    def promote_all(self, *arrays: Array) -> Sequence[Array]:
        """Converts all arrays to float64 if any array is float64, else to float32."""

    def cast(self, x: Array, dtype: Any, /) -> Array:
        """Converts `x` to `dtype`, which is either the dtype of another array or "int32"."""

    def stop_gradient(self, x: Array, /) -> Array:
        """Returns `x` without gradient."""

    # New arrays have the device and, except for `indices`, the dtype of the argument `like` or `x`.

    def full(self, shape: tuple[int, ...], value: float, like: Array, /) -> Array: ...
    def arange(self, start: int, stop: int, like: Array, /) -> Array: ...
    def eye(self, count: int, like: Array, /) -> Array: ...
    def indices(self, count: int, like: Array, /) -> Array:
        """`0, 1, ..., count - 1` in int32."""

    def zeros_like(self, x: Array, /) -> Array: ...

    # Entry by entry.

    def abs(self, x: Array, /) -> Array: ...
    def clip(self, x: Array, low: float, high: float, /) -> Array: ...
    def cos(self, x: Array, /) -> Array: ...
    def erfc(self, x: Array, /) -> Array: ...
    def exp(self, x: Array, /) -> Array: ...
    def log(self, x: Array, /) -> Array: ...
    def maximum(self, x: Array, least: float, /) -> Array: ...
    def rsqrt(self, x: Array, /) -> Array: ...
    def shift_right_logical(self, x: Array, bits: int, /) -> Array: ...
    def sigmoid(self, x: Array, /) -> Array: ...
    def sign(self, x: Array, /) -> Array: ...
    def sin(self, x: Array, /) -> Array: ...
    def softplus(self, x: Array, /) -> Array: ...
    def sqrt(self, x: Array, /) -> Array: ...
    def square(self, x: Array, /) -> Array: ...
    def tanh(self, x: Array, /) -> Array: ...
    def where(self, condition: Array, x: Array | float, y: Array | float, /) -> Array: ...

    # Along axes.

    def cumsum(self, x: Array, axis: int, /) -> Array: ...
    def log_softmax(self, x: Array, axis: int, /) -> Array: ...
    def logsumexp(self, x: Array, axis: int, /, *, keepdims: bool = False) -> Array: ...
    def max(self, x: Array, axis: int, /, *, keepdims: bool = False) -> Array: ...
    def mean(self, x: Array, axis: Axis | None = None, /, *, keepdims: bool = False) -> Array: ...
    def softmax(self, x: Array, axis: Axis, /) -> Array: ...
    def sum(self, x: Array, axis: Axis | None = None, /, *, keepdims: bool = False) -> Array: ...

    # Shapes.

    def broadcast_to(self, x: Array, shape: tuple[int, ...], /) -> Array: ...
    def concatenate(self, arrays: Sequence[Array], axis: int, /) -> Array: ...
    def stack(self, arrays: list[Array], axis: int, /) -> Array: ...
    def swapaxes(self, x: Array, first: int, second: int, /) -> Array: ...

    # Choices along the last axis. Choices carry no gradient. Ties go to the lower index.

    def argmax(self, x: Array, /) -> Array:
        """The int32 index of the largest entry, (..., n) -> (..., 1)."""

    def top_indices(self, x: Array, count: int, /) -> Array:
        """The int32 indices of the `count` largest entries, in descending order of the entries."""

    def top_values(self, x: Array, count: int, /) -> Array:
        """The `count` largest entries in descending order."""

    def argsort(self, x: Array, /) -> Array:
        """The int32 indices that sort the entries in ascending order, (..., n) -> (..., n)."""

    def take(self, x: Array, index: Array, /) -> Array:
        """The entries of `x` at the indices, (..., n) and (..., k) -> (..., k)."""

    def pick(self, x: Array, index: Array, /) -> Array:
        """The entry of `x` at an index, (..., n) and (..., 1) -> (..., 1)."""

    def is_chosen(self, indices: Array, like: Array, /) -> Array:
        """Returns a boolean array (..., n), the shape of `like`: true at the indices (..., k). An index equal to n is ignored."""

    def count(self, index: Array, size: int, like: Array, /) -> Array:
        """Counts how often each of the numbers 0, ..., size - 1 occurs in `index`, as an array (size,) in the dtype of `like`."""

    def put_true(self, indices: Array, like: Array, axis: int, /) -> Array:
        """Returns a boolean array in the shape of `like`: true at `indices` along an axis, and false elsewhere."""

    def largest(self, x: Array, count: int, /) -> tuple[Array, Callable[[Callable[[Array], Array]], Array]]:
        """Returns the `count` largest entries in descending order, and `place`. `place(function)` applies `function` to
        these entries of `x` and replaces all other entries with 0."""

    # Maps between tokens and slots, as int32 indices.

    def positions(self, requests: Array, experts: int, /) -> Array:
        """For each request, counts earlier requests for the same expert, (G, N) -> (G, N). The request `experts` means no expert."""

    def invert_index(self, index: Array, count: int, /) -> Array:
        """For each number below `count`, its position in `index`, else N, (G, N) -> (G, count). Ignores entries equal to `count`."""

    def take_rows(self, x: Array, index: Array, /) -> Array:
        """The rows of `x` at the indices, (G, N, D) and (G, M) -> (G, M, D)."""

    def slot_weights(self, scores: Array, token: Array, slot: Array | None, /) -> Array:
        """The score of each slot's token for the slot's expert, or 0 for an empty slot, (G, T, E) -> (G, E, C)."""

    # Products in full precision.

    def product(self, x: Array, matrix: Array, /) -> Array:
        """(G, T, D) and (D, S) -> (G, T, S)."""

    def scaled_product(
        self, tokens: Array, x: Array, slots: Array, rows: Array | None, columns: Array | None, /
    ) -> Array:
        """`(rows * x) (columns * slots)`: x (G, T, D), slots (D, E, C), rows (G, T, 1), columns (1, E, C) -> (G, T, E, C).

        `tokens` is `x` before promotion. If `rows` or `columns` is None, the corresponding factor is 1.
        """

    # Loops and random numbers.

    def loop(self, count: int, body: Callable[[Any, Any], Any], state: Any, /) -> Any:
        """Repeats `state = body(step, state)` for the steps 0, ..., count - 1."""

    def whole(self, function: Function, /) -> Function:
        """Wraps a function of a namespace, an array and numbers as a single operation if a compiler would otherwise unroll its loops.
        The result has the shape and dtype of the array argument. Of the wrapped functions, only `sinkhorn_plan` needs a gradient."""

    def threefry(self, key: Array, first: Array, second: Array, /) -> Array:
        """Threefry-2x32-20 of the counters `first` and `second`, which are broadcast: key (2,) -> (..., 2) int32."""


class RoutingNamespace(Namespace[Array], Protocol[Array, BySlot, Dense]):
    """The array namespace of a framework, with the framework's types for routing records."""

    SlotRouting: type[BySlot]
    """The record of a sparse routing, with the fields `token`, `weight`, `slot` and `tokens`."""
    SoftRouting: type[Dense]
    """The record of a dense routing, with the fields `dispatch` and `combine`."""

    def by_expert(self, routing: BySlot, values: Array, /) -> Array:
        """Puts the value of each slot at the slot's token and expert, and 0 elsewhere, (G, E, C) -> (G, T, E)."""
