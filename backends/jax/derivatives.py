"""Linear and bilinear functions with explicit transposes, for fast forward-mode, reverse-mode and higher-order derivatives.

`jax.custom_vjp` supports neither forward mode nor derivatives of gradients. `custom_derivatives.linear_call` does not support `vmap`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir

Arrays = Sequence[Any]
Function = Callable[..., Arrays]
untyped: Any = jax


def linear(function: Function, transpose: Function, fixed: Any, arrays: Arrays) -> Sequence[jax.Array]:
    """Computes `function(fixed, *arrays)`, a tuple that is linear in `arrays` and has the transpose `transpose(fixed, *cotangents)`.

    fixed: a pytree. JAX differentiates `function` and `transpose` with respect to `fixed`. Each of `arrays` may be a `SymbolicZero`.
    """
    leaves, tree = jax.tree.flatten(fixed)
    count, live = len(leaves), [n for n, array in enumerate(arrays) if not isinstance(array, SymbolicZero)]

    def forward(*flat: Any) -> Arrays:
        of_live = dict(zip(live, flat[count:], strict=True))
        every = (of_live[n] if n in of_live else jnp.zeros(array.shape, array.dtype) for n, array in enumerate(arrays))
        return function(jax.tree.unflatten(tree, flat[:count]), *every)

    def backward(*flat: Any) -> Arrays:
        every = transpose(jax.tree.unflatten(tree, flat[:count]), *flat[count:])
        return [every[n] for n in live]

    return _call(forward, backward, count, *leaves, *(arrays[n] for n in live))


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def bilinear(function: Function, transpose: Function, fixed: Any, left: Any, right: Any) -> Sequence[jax.Array]:
    """Computes the tuple `function(fixed, left, right)`. `transpose(fixed, left, right, *cotangents)` returns the two cotangents.

    All entries are linear in `right`. The first entry is also linear in `left`, and the other entries do not depend on `left`.
    """
    return tuple(function(fixed, left, right))


def _derivative(function: Function, transpose: Function, primals: Any, tangents: Any) -> tuple[Arrays, Arrays]:
    def moved(primals: Any, *tangents: Any) -> Arrays:
        (fixed, left, right), (to_left, to_right) = primals, tangents
        pairs = zip(of(fixed, to_left, right), of(fixed, left, to_right), strict=True)
        return [first + second if n == 0 else second for n, (first, second) in enumerate(pairs)]

    def transposed(primals: Any, *cotangents: Any) -> Arrays:
        return transpose(*primals, *cotangents)

    of = partial(bilinear, function, transpose)
    return of(*primals), tuple(linear(moved, transposed, primals, tangents[1:]))


bilinear.defjvp(_derivative, symbolic_zeros=True)

_linear: Any = Primitive("linear")
_linear.multiple_results = True


def _call(function: Function, transpose: Function, count: int, *flat: Any) -> Arrays:
    """Binds the primitive to a function that is linear in all arrays after the first `count` arrays."""
    result: Arrays = _linear.bind(*flat, jaxpr=jax.make_jaxpr(function)(*flat), transpose=transpose, count=count)
    return result


def _result(*flat: Any, jaxpr: Any, **_: Any) -> Arrays:
    result: Arrays = jaxpr_as_fun(jaxpr)(*flat)
    return result


def _tangent(primals: Arrays, tangents: Arrays, *, jaxpr: Any, transpose: Function, count: int) -> tuple[Arrays, Any]:
    function: Function = jaxpr_as_fun(jaxpr)
    parts: list[Arrays] = []
    moved = [n for n, tangent in enumerate(tangents) if type(tangent) is not ad.Zero]
    if any(n >= count for n in moved):
        arrays = map(ad.instantiate_zeros, tangents[count:])
        parts.append(_call(function, transpose, count, *primals[:count], *arrays))
    if fixed := [n for n in moved if n < count]:

        def of_fixed(*values: Any) -> Arrays:
            at = dict(zip(fixed, values, strict=True))
            return function(*(at.get(n, primal) for n, primal in enumerate(primals)))

        parts.append(jax.jvp(of_fixed, [primals[n] for n in fixed], [tangents[n] for n in fixed])[1])
    result = _linear.bind(*primals, jaxpr=jaxpr, transpose=transpose, count=count)
    return result, [sum(each[1:], each[0]) for each in zip(*parts, strict=True)]


def _transposed(cotangents: Arrays, *flat: Any, jaxpr: Any, transpose: Function, count: int) -> Arrays:
    result = _call(transpose, jaxpr_as_fun(jaxpr), count, *flat[:count], *map(ad.instantiate_zeros, cotangents))
    wanted = map(ad.is_undefined_primal, flat[count:])
    return [None] * count + [array if each else None for array, each in zip(result, wanted, strict=True)]


def _batched(flat: Arrays, axes: Arrays, *, jaxpr: Any, transpose: Function, count: int) -> tuple[Arrays, Arrays]:
    (size, *_) = (array.shape[axis] for array, axis in zip(flat, axes, strict=True) if axis is not None)
    arrays = [cast(Any, batching).bdim_at_front(*each, size) for each in zip(flat[count:], axes[count:], strict=True)]

    def mapped(function: Function) -> Function:
        def call(*flat: Any) -> Arrays:
            of_flat = (*axes[:count], *[0] * (len(flat) - count))
            result: Arrays = untyped.vmap(function, of_flat, axis_size=size)(*flat)
            return result

        return call

    result = _call(mapped(jaxpr_as_fun(jaxpr)), mapped(transpose), count, *flat[:count], *arrays)
    return result, [0] * len(result)


_linear.def_impl(_result)
_linear.to_lojax = _result  # JAX 0.12 calls this function instead of the primitive if `jaxpr` has operations that it lowers in a first step
_linear.def_abstract_eval(lambda *_, jaxpr, **__: jaxpr.out_avals)
ad.primitive_jvps[_linear] = _tangent
ad.primitive_transposes[_linear] = _transposed
batching.primitive_batchers[_linear] = _batched
mlir.register_lowering(_linear, mlir.lower_fun(_result, multiple_results=True))
