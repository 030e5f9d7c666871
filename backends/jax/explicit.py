"""Runs functions on arrays whose groups or experts are split over explicit axes of the user's mesh.

If groups are split, `jax.shard_map` runs the single-device program on each device. Devices exchange only the means and
sums over all groups, and the slots of experts on other devices. For all other splits, JAX partitions the function or raises an error.
"""

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import jax
from jax import lax
from jax.sharding import AxisType

from moespec.backends.jax.exchange import back, there
from moespec.spec.errors import ShapeError

Function = TypeVar("Function", bound=Callable[..., Any])
Axes = tuple[str, ...]

# JAX does not declare the types of its sharding functions and collective operations.
untyped: Any = jax
PartitionSpec, collective = untyped.sharding.PartitionSpec, cast(Any, lax)


class Split(NamedTuple):
    """The split of arrays: the mesh, the mesh axes that split the groups, and the mesh axes that split the experts."""

    mesh: Any
    groups: Axes
    experts: Axes

    @property
    def axes(self) -> Axes:
        """The mesh axes that split the groups during the computation, including the axes that split the experts."""
        return self.groups + tuple(axis for axis in self.experts if axis not in self.groups)


def by_groups(kinds: Mapping[str, str], *, summed: bool = False) -> Callable[[Function], Function]:
    """Maps a function over the devices if the groups or the experts of an array argument are split.

    kinds: the kinds of arguments by name, "group" for an array with a leading groups axis, and "experts" for parameters of experts. All
        groups share arrays without a kind. The function may return arrays with a leading groups axis, and means over groups (if `summed`
        is true, sums over groups). If an argument has the kind "experts", the other argument and the result are slots (G, E, C, D).
    """

    def mapped(function: Function) -> Function:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            if not is_split((arguments, options)):
                return function(*arguments, **options)
            bound = signature.bind(*arguments, **options).arguments
            arrays = {name: value for name, value in bound.items() if _is_of_arrays(value)}
            fixed = {name: value for name, value in bound.items() if name not in arrays}
            _check_whole_groups(arrays.get("tokens"))
            split = None if any(map(callable, fixed.values())) else _split_of(arrays, kinds)
            if split is None:
                return function(*arguments, **options)
            whole = collective.psum if summed else collective.pmean
            return _mapped(functools.partial(function, **fixed), arrays, kinds, split, whole)

        return cast(Function, call)

    return mapped if {"group", "experts"} & set(kinds.values()) else lambda function: function


def is_split(tree: Any) -> bool:
    """True if explicit mesh axes split any array in a tree."""
    return any(_axes(leaf) for leaf in jax.tree.leaves(tree))


def split_alike(arrays: Sequence[Any]) -> list[Any]:
    """If all split arrays have the same split, splits the other arrays in the same way."""
    specs = [untyped.typeof(array).sharding.spec if _axes(array) else None for array in arrays]
    (spec, *others) = set(filter(None, specs)) or {None}
    if spec is None or others:
        return list(arrays)
    return [array if each else _resharded(array, spec) for array, each in zip(arrays, specs, strict=True)]


def _is_of_arrays(value: Any) -> bool:
    leaves = jax.tree.leaves(value)
    return bool(leaves) and all(hasattr(leaf, "shape") for leaf in leaves)


def _axes(leaf: Any) -> dict[int, Axes]:
    """Maps each split axis of an array to the explicit mesh axes that split this axis."""
    if not isinstance(leaf, jax.Array):
        return {}
    spec = untyped.typeof(leaf).sharding.spec
    return {axis: (names,) if isinstance(names, str) else tuple(names) for axis, names in enumerate(spec) if names}


def _check_whole_groups(tokens: Any) -> None:
    """Raises ShapeError if the tokens of a group, (G, T, ...), are split."""
    if axes := _axes(tokens).get(1):
        raise ShapeError(
            f"tokens: the {tokens.shape[1]} tokens of a group are split over {', '.join(axes)} of the mesh; they must be on one device"
        )


def _split_of(arrays: Mapping[str, Any], kinds: Mapping[str, str]) -> Split | None:
    """The split of groups and experts, or None if arrays are split along other axes."""
    splits: dict[str, set[Axes]] = {"group": set(), "experts": set()}
    mesh = None
    for name, tree in arrays.items():
        for leaf in jax.tree.leaves(tree):
            kind, axes = kinds.get(name, ""), _axes(leaf)
            if not axes:
                continue
            # Expert parameters may also be split along other axes, which JAX gathers before the experts compute.
            if kind not in splits or (kind == "group" and set(axes) != {0}):
                return None
            mesh = untyped.typeof(leaf).sharding.mesh
            splits[kind].add(axes.get(0, ()))
    if max(map(len, splits.values())) > 1:
        return None
    groups, experts = (next(iter(axes), ()) for axes in splits.values())
    return Split(mesh, groups, experts)


def _mapped(
    function: Callable[..., Any],
    arrays: dict[str, Any],
    kinds: Mapping[str, str],
    split: Split,
    whole: Callable[..., Any],
) -> Any:
    rows, same = PartitionSpec(split.axes), PartitionSpec()
    of_kind = {"group": rows, "experts": PartitionSpec(split.experts)}
    specs = {
        name: jax.tree.map(lambda _, name=name: of_kind.get(kinds.get(name, ""), same), arrays[name]) for name in arrays
    }
    returned = _by_group(function, arrays, kinds)
    names = [name for name in arrays if kinds.get(name) == "group"]
    (groups, *_) = (leaf.shape[0] for leaf in jax.tree.leaves([arrays[name] for name in names]))
    devices = math.prod(split.mesh.shape[axis] for axis in split.axes)
    if groups % devices:
        raise ShapeError(
            f"{names[0]}: {groups} groups cannot be split evenly among the {devices} devices along {', '.join(split.axes)} of the mesh"
        )

    def local(arrays: dict[str, Any]) -> Any:
        if split.experts:
            moved = {name: there(arrays[name], split.experts) for name in names}
            return back(function(**{**arrays, **moved}), split.experts)
        return jax.tree.map(
            lambda leaf, by_group: leaf if by_group else whole(leaf, split.axes), function(**arrays), returned
        )

    result = jax.shard_map(
        local,
        mesh=split.mesh,
        in_specs=(specs,),
        out_specs=jax.tree.map(lambda by_group: rows if by_group else same, returned),
        axis_names={
            axis
            for axis, kind in zip(split.mesh.axis_names, split.mesh.axis_types, strict=True)
            if kind == AxisType.Explicit
        },
        check_vma=False,
    )(_resharded(arrays, specs))
    # Restore the original split of the groups.
    return result if split.axes == split.groups else _resharded(result, PartitionSpec(split.groups))


def _resharded(tree: Any, specs: Any) -> Any:
    return untyped.sharding.reshard(tree, specs)


def _by_group(function: Callable[..., Any], arrays: dict[str, Any], kinds: Mapping[str, str]) -> Any:
    """For each result of `function`, True if its first axis is a groups axis, whose length changes with the number of groups."""

    def shapes(times: int) -> Any:
        def shape(leaf: Any, is_group: bool) -> Any:
            size = (times * leaf.shape[0], *leaf.shape[1:]) if is_group else leaf.shape
            return untyped.ShapeDtypeStruct(size, leaf.dtype)

        arguments = {
            name: jax.tree.map(functools.partial(shape, is_group=kinds.get(name) == "group"), tree)
            for name, tree in arrays.items()
        }
        return jax.eval_shape(lambda arguments: function(**arguments), arguments)

    return jax.tree.map(lambda once, twice: once.shape[:1] != twice.shape[:1], shapes(1), shapes(2))
