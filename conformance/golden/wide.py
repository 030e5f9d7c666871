"""Wide cases, derived from a valid call of each public function: sizes and numbers that small cases do not have.

`odd_sizes` has three groups, odd axes, numbers of more bits than bfloat16 has, far logits, and a gradient by every float
input. `long` has 42 tokens, or 273 where tokens are counted or have an index. `many` has nine choices, of 258 experts
where these are counted or have an index. `level` has experts of equal importance and equal load. `coverage.py` says what of
it every function must have.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.conformance.author.definition import Definition
from moespec.conformance.author.inputs import grid, permutation
from moespec.conformance.format import Tensor
from moespec.conformance.functions import function
from moespec.conformance.functions.describe import GROUPS

__all__ = ["UPDATES", "counts", "wide"]

TOKENS, INDEXED, FEW, EXPERTS, CHOICES = 42, 273, 12, 258, 9
NARROW = {"width": 2, "dim": 2, "hidden": 2, "channels": 2, "features": 2}
ONE = dict.fromkeys((*GROUPS, "examples"), 1)
FIXED = ("words", "pair")
"""Axes that have one size alone."""
SIZES: Mapping[str, dict[str, int]] = {
    "base_assignment": {"tokens": 9, "experts": 3},
    "capped_affinity": {"tokens": 7},
    "collapse_metrics": {"tokens": 5},
    "cumulative_dispatch": {"tokens": 5},
    "dselect_k_codes": {"columns": 9},
    "experts_per_token": {"tokens": 5},
    "group_limited_scores": {"experts": 9},
    "dselect_k_selectors": {"choices": 3, "bits": 3},
    "hierarchical_affinity": {"columns": 15},
    "hierarchical_load_loss": {"columns": 15},
    "multi_hash_mlp": {"hidden": 3, "width": 3, "hashes": 3},
    "patch_embed": {"height": 3, "width": 9},
    "pool_images": {"tokens": 9},
    "summed_dispatch": {"tokens": 5},
}
"""Sizes that must fit an option or another size."""
OPTIONS: Mapping[str, dict[str, Any]] = {
    "base_assignment": {"shards": 1},
    "dselect_k_codes": {"choices": 3, "experts": 3},
    "dselect_k_selectors": {"experts": 5},
    "group_limited_scores": {"groups": 3},
    "pool_images": {"images": 3},
}
WHOLE = {"hash_table_of/tables", "multi_hash_mlp/tables", "hash_routing/table", "quantile_bias/counts"}
"""Floats that are whole numbers."""
DRAWN = {"dropout/draws"}
"""Random numbers, which are compared with a bound."""
WITHOUT_MANY = {"base_assignment", "collapse_metrics", "cumulative_dispatch", "slot_similarity", "summed_dispatch"}
"""Functions that need as many tokens as experts, or whose result is large, or a mean over the experts."""
KINKED = {"excess_gates/gates", "relu_affinity/logits"}
"""Arrays with zeros, at which a derivative jumps: they are moved."""
UPDATES = {
    *(
        "balance_bias",
        "box_muller",
        "k_means",
        "momentum_update",
        "moved_thresholds",
        "quantile_bias",
        "renewed_penalty",
    ),
    "required_biases",
}
"""Functions that no gradient passes: updates of a state, tables, random numbers."""


def wide(valid: Mapping[str, Definition]) -> Iterator[Definition]:
    """The wide cases of the functions, from a valid call of each by path."""
    for path, definition in valid.items():
        if definition.routed is None and "." not in path:
            yield _wide(path, definition)
            axes = {axis for tensor in definition.inputs.values() for axis in tensor.axes}
            if "tokens" in axes:
                yield _long(path, definition)
            if "experts" in axes and (counts(path) or function(path).choice) and path not in WITHOUT_MANY:
                yield _many(path, definition)
            if path.endswith("_loss") and "experts" in axes and path not in SIZES:
                yield _level(path, definition)


def counts(path: str) -> bool:
    """Whether results of a function are indices or counts."""
    outputs = function(path).outputs.values()
    return any(output.kind == "int" or (output.scale == "unit" and "tokens" not in output.axes) for output in outputs)


def _wide(path: str, definition: Definition) -> Definition:
    sizes = {axis: _odd(axis, size) for axis, size in _sizes(path, definition).items()}
    sizes |= SIZES.get(path, {})
    inputs = {}
    for name, tensor in _resized(definition, sizes).items():
        array = _finer(path, name, tensor.array)
        if "logits" in name and array.ndim > 1:  # far beyond the 88.8 at which float32 overflows
            array.reshape(-1, array.shape[-1])[-1] = np.linspace(100.3, -203.7, array.shape[-1])
        inputs[name] = replace(tensor, array=array)
    purpose = "Three groups, odd sizes, numbers of more bits than bfloat16 has."
    return _case(path, definition, "odd_sizes", purpose, inputs, OPTIONS.get(path, {}), gradient=path not in UPDATES)


def _long(path: str, definition: Definition) -> Definition:
    tokens = INDEXED if counts(path) else TOKENS
    sizes = {axis: min(size, NARROW.get(axis, size)) for axis, size in _sizes(path, definition).items()}
    inputs = _resized(definition, {**sizes, **ONE, **SIZES.get(path, {}), "tokens": tokens})
    for name, tensor in inputs.items():
        array = _finer(path, name, tensor.array)
        if tensor.axes[-2:] == ("tokens", "experts") and array.dtype.kind == "f":  # nearly all prefer the first expert
            array[..., :-8, :] = np.sort(array[..., :-8, :])[..., ::-1]
        inputs[name] = replace(tensor, array=array)
    return _case(path, definition, "long", f"{tokens} tokens.", inputs, OPTIONS.get(path, {}))


def _many(path: str, definition: Definition) -> Definition:
    experts = EXPERTS if counts(path) and path != "required_biases" else FEW
    tokens = max(2, *(stage.options.get("capacity", 2) for stage in definition.stages))
    inputs = _resized(definition, {**_sizes(path, definition), **ONE, "experts": experts, "tokens": tokens})
    inputs = {name: replace(tensor, array=_finer(path, name, tensor.array)) for name, tensor in inputs.items()}
    options = {"choices": CHOICES} if "choices" in definition.stages[-1].options else {}
    options |= OPTIONS.get(path, {})
    return _case(path, definition, "many", f"{experts} experts.", inputs, options)


def _level(path: str, definition: Definition) -> Definition:
    """Each expert is a different token's best, second best and so on."""
    inputs = _resized(definition, {**_sizes(path, definition), "experts": 5, "tokens": 5})
    for name, tensor in inputs.items():
        array = _finer(path, name, tensor.array)
        if tensor.axes[-2:] == ("tokens", "experts"):
            turn = np.add.outer(np.arange(5), np.arange(5)) % 5
            array = np.sort(array[..., :1, :])[..., 0, :][..., turn]
        elif tensor.axes == ("experts",):
            array = np.full_like(array, array.mean())
        inputs[name] = replace(tensor, array=array)
    return _case(path, definition, "level", "Experts of equal importance and equal load.", inputs, gradient=True)


def _case(
    path: str,
    definition: Definition,
    name: str,
    purpose: str,
    inputs: Mapping[str, Tensor],
    options: Mapping[str, Any] | None = None,
    *,
    gradient: bool = False,
) -> Definition:
    *before, stage = definition.stages
    stage = replace(stage, options={**stage.options, **(options or {})})
    smooth = any(output.kind == "float" for output in function(path).outputs.values())
    floats = tuple(name for name, tensor in inputs.items() if tensor.array.dtype.kind == "f")
    return replace(
        definition,
        name=name if path == definition.algorithm else f"{path}_{name}",
        kind="gradient" if gradient and smooth and floats else "value",
        purpose=purpose,
        flags=("low_precision",),
        inputs=inputs,
        by=tuple(name for name in floats if f"{path}/{name}" not in DRAWN),
        stages=(*before, stage),
    )


def _sizes(path: str, definition: Definition) -> dict[str, int]:
    tensors = definition.inputs.values()
    sizes = {n: s for tensor in tensors for n, s in zip(tensor.axes, tensor.array.shape, strict=True)}
    return sizes | SIZES.get(path, {})


def _odd(axis: str, size: int) -> int:
    if axis in FIXED:
        return size
    return 3 if axis in GROUPS or size < 3 else 3 if axis == "tokens" else size | 1


def _resized(definition: Definition, sizes: Mapping[str, int]) -> dict[str, Tensor]:
    """The inputs with other sizes: the entries of an axis are repeated in their order, or the last ones left out."""
    resized = {}
    for name, tensor in definition.inputs.items():
        array = tensor.array
        for position, axis in enumerate(tensor.axes):
            array = array.take(np.arange(sizes[axis]) % array.shape[position], axis=position)
        resized[name] = Tensor(array, tensor.axes)
    return resized


def _finer(path: str, name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Floats up to an eighth smaller, all different, with some 20 bits; orders that are orders."""
    key = f"wide/{path}/{name}"
    if name.rpartition("/")[2] == "order":
        return np.stack([permutation(f"{key}/{row}", array.shape[-1]) for row in range(len(array))])
    if array.dtype.kind != "f" or f"{path}/{name}" in WHOLE:
        return array.copy()
    less = np.abs(grid(key, array.shape, reach=0.125, step=2.0**-18))
    shifted = "logits" in name or f"{path}/{name}" in KINKED
    return (array - less if shifted else array * (1 - less)).astype(np.float32)
