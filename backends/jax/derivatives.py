"""Linear functions whose transposes are given: their derivatives of every kind and order are as fast as themselves.

`jax.custom_vjp` allows neither forward mode nor a derivative of the gradient, and `custom_derivatives.linear_call` no `vmap`.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir

from moespec.backends.jax.arrays import Array

Arrays = Sequence[Any]
Function = Callable[..., Arrays]
untyped: Any = jax


def linear(function: Function, transpose: Function, fixed: Any, arrays: Arrays) -> list[Array]:
    """`function(fixed, *arrays)`, a tuple that is linear in `arrays`, with the transpose `transpose(fixed, *cotangents)`.

    fixed: a pytree; derivatives with respect to it are those of the two functions. An array may be a `SymbolicZero`.
    """
    leaves, tree = jax.tree.flatten(fixed)
    count, known = len(leaves), [isinstance(array, SymbolicZero) for array in arrays]

    def forward(*flat: Any) -> Arrays:
        rest = iter(flat[count:])
        pairs = zip(arrays, known, strict=True)
        every = [jax.numpy.zeros(array.shape, array.dtype) if zero else next(rest) for array, zero in pairs]
        return function(jax.tree.unflatten(tree, flat[:count]), *every)

    def backward(*flat: Any) -> Arrays:
        every = transpose(jax.tree.unflatten(tree, flat[:count]), *flat[count:])
        return [array for array, zero in zip(every, known, strict=True) if not zero]

    live = [array for array, zero in zip(arrays, known, strict=True) if not zero]
    return cast(list[Array], _bound(forward, backward, count, *leaves, *live))


_linear: Any = Primitive("linear")
_linear.multiple_results = True


def _bound(function: Function, transpose: Function, count: int, *flat: Any) -> Arrays:
    """A call of the primitive: of the arrays, the function is linear in those after the first `count`."""
    jaxpr = jax.make_jaxpr(function)(*flat)
    return cast(Arrays, _linear.bind(*flat, jaxpr=jaxpr, transpose=transpose, count=count))


def _call(*flat: Any, jaxpr: Any, transpose: Function, count: int) -> Arrays:
    return cast(Arrays, jaxpr_as_fun(jaxpr)(*flat))


def _tangent(primals: Arrays, tangents: Arrays, *, jaxpr: Any, transpose: Function, count: int) -> tuple[Arrays, Any]:
    function = jaxpr_as_fun(jaxpr)
    moved = [n for n, tangent in enumerate(tangents) if type(tangent) is not ad.Zero]
    parts = []
    if any(n >= count for n in moved):
        arrays = map(ad.instantiate_zeros, tangents[count:])
        parts.append(_bound(function, transpose, count, *primals[:count], *arrays))
    if of_fixed := [n for n in moved if n < count]:

        def with_fixed(*values: Any) -> Arrays:
            at = dict(zip(of_fixed, values, strict=True))
            return function(*(at.get(n, primal) for n, primal in enumerate(primals)))

        parts.append(jax.jvp(with_fixed, [primals[n] for n in of_fixed], [tangents[n] for n in of_fixed])[1])
    result = _linear.bind(*primals, jaxpr=jaxpr, transpose=transpose, count=count)
    return result, [sum(each[1:], each[0]) for each in zip(*parts, strict=True)]


def _transposed(cotangents: Arrays, *flat: Any, jaxpr: Any, transpose: Function, count: int) -> Arrays:
    result = _bound(transpose, jaxpr_as_fun(jaxpr), count, *flat[:count], *map(ad.instantiate_zeros, cotangents))
    wanted = map(ad.is_undefined_primal, flat[count:])
    return [None] * count + [array if each else None for array, each in zip(result, wanted, strict=True)]


def _batched(flat: Arrays, axes: Arrays, *, jaxpr: Any, transpose: Function, count: int) -> tuple[Arrays, Arrays]:
    (size, *_) = (array.shape[axis] for array, axis in zip(flat, axes, strict=True) if axis is not None)
    arrays = [batching.bdim_at_front(*each, size) for each in zip(flat[count:], axes[count:], strict=True)]

    def mapped(function: Function) -> Function:
        def call(*flat: Any) -> Arrays:
            of_arrays = (0,) * (len(flat) - count)
            return cast(Arrays, untyped.vmap(function, (*axes[:count], *of_arrays), axis_size=size)(*flat))

        return call

    result = _bound(mapped(jaxpr_as_fun(jaxpr)), mapped(transpose), count, *flat[:count], *arrays)
    return result, [0] * len(result)


_linear.def_impl(_call)
_linear.def_abstract_eval(lambda *flat, jaxpr, **_: jaxpr.out_avals)
ad.primitive_jvps[_linear] = _tangent
ad.primitive_transposes[_linear] = _transposed
batching.primitive_batchers[_linear] = _batched
mlir.register_lowering(_linear, mlir.lower_fun(_call, multiple_results=True))
