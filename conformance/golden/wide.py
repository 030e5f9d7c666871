"""Derives wide cases, with sizes and numbers that small cases lack, from a valid call of each public function.

`odd_sizes` has three groups, axes of odd size, floats with more bits than bfloat16, extreme logits, and a gradient for each float input.
`long` has 42 tokens, or 273 for `BLOCKS`, indices, counts and results without a tokens axis. `many` has nine choices and 12 experts, or
258 experts for `SUMS`, indices and counts. In `level`, experts have equal importance and load. `coverage.py` lists required cases.
"""

from collections.abc import Container, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.conformance.author import inputs as given
from moespec.conformance.author.definition import Definition, call, composed, single
from moespec.conformance.author.definition import tensor as named_axes
from moespec.conformance.author.inputs import grid, permutation
from moespec.conformance.format import Tensor
from moespec.conformance.functions import function
from moespec.conformance.functions.describe import GROUPS

__all__ = ["FAR", "UPDATES", "counts", "wide"]

TOKENS, INDEXED, FEW, EXPERTS, CHOICES = 42, 273, 12, 258, 9
NARROW = {"width": 2, "dim": 2, "hidden": 2, "channels": 2, "features": 2, "experts": 2, "heads": 1}
ONE = dict.fromkeys((*GROUPS, "examples"), 1)
FIXED = ("words", "pair")
"""Axes with a fixed size."""
SIZES: Mapping[str, dict[str, int]] = {
    "base_assignment": {"tokens": 9, "experts": 3},
    "base_routing": {"experts": 3},
    "capped_affinity": {"tokens": 7},
    "collapse_metrics": {"tokens": 5},
    "cumulative_dispatch": {"tokens": 5},
    "dselect_k_codes": {"columns": 9},
    "experts_per_token": {"tokens": 5},
    "group_limited_scores": {"experts": 9},
    "dselect_k_selectors": {"choices": 3, "bits": 3},
    "hierarchical_affinity": {"columns": 15},
    "hierarchical_load_loss": {"columns": 15},
    "masked_gates": {"experts": 5},
    "multi_hash_mlp": {"experts": 3, "hidden": 3, "width": 3, "hashes": 3},
    "patch_embed": {"height": 3, "width": 9},
    "pool_images": {"tokens": 9},
    "summed_dispatch": {"tokens": 5},
}
"""Axis sizes of functions in which an option or another axis constrains the size."""
OPTIONS: Mapping[str, dict[str, Any]] = {
    "base_assignment": {"shards": 1},
    "base_routing": {"capacity": 7},
    "dselect_k_codes": {"choices": 3, "experts": 3},
    "dselect_k_selectors": {"experts": 5},
    "group_limited_scores": {"groups": 3},
    "importance_score_choice": {"capacity": 7},
    "pool_images": {"images": 3},
    "spread_images": {"tokens": 42},
}
WHOLE = {
    "hash_scores/tables",
    "hash_table_of/tables",
    "multi_hash_mlp/tables",
    "hash_routing/table",
    "quantile_bias/counts",
}
"""Float arrays with integer values."""
CONSTANT = {"dropout/draws", "relu_loss/penalty", "scores_above/thresholds"}
"""Inputs that need no gradient: random numbers and states."""
WITHOUT_MANY = {"base_assignment", "collapse_metrics", "cumulative_dispatch", "slot_similarity", "summed_dispatch"}
"""Functions without a case `many`: they need as many tokens as experts, or their result is large or a mean over experts."""
SUMS = {"softmax_affinity", "sinkhorn_affinity", "importance_loss", "balance_loss", "z_loss"}
"""Functions that sum over all experts."""
BLOCKS = {"router_logits", "softmax_affinity"}
"""Row-wise functions that kernels compute in blocks of tokens."""
FAR = {"gelu/x"}
"""Inputs that are not logits but reach an exponential, and therefore also get extreme values."""
LEAST_SIZES: Mapping[str, dict[str, int]] = {
    **{key: {"experts": 2} for key in ("gshard_keep", "quantile_bias", "required_biases")},
    **{key: {"columns": 2} for key in ("hierarchical_affinity", "hierarchical_load_loss")},
    "dselect_k_codes": {"columns": 3},
    "replay_choices": {"choices": 1},
}
"""Axis sizes in the case `one` for functions that need at least two experts or columns."""
KINKED = {"excess_gates/gates", "relu_affinity/logits"}
"""Arrays that contain zeros, where a derivative jumps. `_finer` removes the zeros by subtracting small numbers."""
UPDATES = {
    *(
        "balance_bias",
        "box_muller",
        "k_means",
        "momentum_update",
        "moved_thresholds",
        "quantile_bias",
        "renewed_controller",
        "renewed_cutoffs",
        "renewed_penalty",
    ),
    "required_biases",
}
"""Functions without a gradient, because they compute states, tables or random numbers."""


def _more() -> Iterator[Definition]:
    """Yield calls with arguments that other cases omit. A call named "valid" replaces the same function's call in `valid` of `wide`."""
    key, pairs = "wide/more", "groups tokens choices"
    yield single("sigmoid_token_choice", "sigmoid_affinity", "valid", "value", "", logits=given.logits(f"{key}/a"))
    kernel: dict[str, Any] = {"kernel": given.kernel(f"{key}/b"), "bias": given.of_experts(grid(f"{key}/c", (3,)))}
    yield single("softmax_affinity", "router_logits", "valid", "value", "", tokens=given.tokens(f"{key}/d"), **kernel)
    load: dict[str, Any] = {
        "scores": given.utilities(f"{key}/e", (2, 8, 4)),
        "load": given.of_experts([9.0, 3.0, 0.0, 20.0]),
    }
    yield single("balance_loss", "balance_loss", "loaded", "value", "", choices=2, **load)
    codes = named_axes(grid(f"{key}/f", (2, 3, 3, 3), reach=0.375), f"{pairs} bits")
    yield single("dselect_k_gate", "dselect_k_selectors", "valid", "value", "", codes=codes, experts=5, gamma=1.0)
    chosen = named_axes(grid(f"{key}/g", (2, 3, 3, 5), reach=0.25, centre=0.3125), f"{pairs} experts")
    mixed: dict[str, Any] = {"selectors": chosen, "logits": named_axes(grid(f"{key}/h", (2, 3, 3)), pairs)}
    yield single("dselect_k_gate", "dselect_k_gate", "valid", "value", "", **mixed)
    slots = named_axes(grid(f"{key}/i", (2, 3, 2, 3)), "groups experts capacity width")
    params = given.experts(key, 3, 3, 3, 3, gated=True)
    yield single("moe_layer", "expert_mlp", "gated", "value", "", inputs=slots, params=params)
    shared = {name: replace(t, array=t.array[0], axes=t.axes[1:]) for name, t in params.items()}
    arrays = {"params": given.experts(f"{key}/j", 3, 3, 3, 3, gated=True), "shared": shared}
    named = {part: {name: f"{part}/{name}" for name in arrays[part]} for part in arrays}
    choose = call("token_choice", {"scores": "token_choice/scores"}, choices=2, capacity=3)
    layer = call("moe_mlp", {"tokens": "tokens", "routing": "token_choice", **named})
    inputs = {
        "token_choice/scores": given.distinct(f"{key}/k", (2, 3, 3)),
        "tokens": given.tokens(f"{key}/l", (2, 3, 3)),
    }
    inputs |= {f"{part}/{name}": each for part in arrays for name, each in arrays[part].items()}
    keep = named_axes(given.integers(f"{key}/m", (2, 5, 3), 0, 2) > 0, pairs)
    kept: dict[str, Any] = {"scores": given.distinct(f"{key}/n", (2, 5, 3)), "keep": keep, "choices": 3, "capacity": 3}
    yield single("token_choice", "token_choice", "kept", "value", "", **kept)
    choice: dict[str, Any] = {"scores": given.distinct(f"{key}/o", (2, 5, 3)), "choices": 2, "capacity": 3}
    yield single("token_choice", "token_choice", "alone", "value", "", **choice)
    choice = {"scores": given.distinct(f"{key}/p", (2, 5, 3)), "capacity": 2}
    yield single("expert_choice", "expert_choice", "alone", "value", "", **choice)
    table = named_axes((np.arange(299) * 7 + 2) % 259, "ids")
    ids: dict[str, Any] = {"ids": named_axes([[298, 257, 2], [3, 256, 0]], "groups tokens"), "table": table}
    words = {"ids": ids["ids"], "table": named_axes(grid(f"{key}/s", (299, 1)), "ids width")}
    yield single("embedding", "embedding", "many_ids", "value", "", **words)
    yield single("hash_routing", "hash_routing", "many_experts", "value", "", experts=259, capacity=1, **ids)
    apart = given.groups_tokens([[[0.99, 0.01, 0.5], [0.02, 0.75, 0.98], [0.5, 0.9, 0.03]]])
    bins: dict[str, Any] = {"scores": apart, "bias": given.of_experts([0.25, -0.125, 0.5]), "bins": 599}
    yield single("quantile_balancing", "required_biases", "many_bins", "value", "", choices=1, **bins)
    far: dict[str, Any] = {"x": named_axes(1000.0 + grid(f"{key}/r", (1, 3, 5)), "images tokens width")}
    far |= {name: named_axes(grid(f"{key}/r/{name}", (5,)), "width") for name in ("scale", "bias")}
    yield single("network", "layer_norm", "large_mean", "value", "", **far)
    yield composed("moe_layer", "valid", "value", "", inputs=inputs, stages=(choose, layer))


def wide(valid: Mapping[str, Definition], small: Container[tuple[str, str]]) -> Iterator[Definition]:
    """Yield the wide cases of the functions. valid: a valid call of each function, by path.

    small: the (function, axis) pairs for which some case has an axis of size one.
    """
    plain = {each.stages[-1].call: each for each in _more() if each.name == "valid"}
    for definition in (each for each in _more() if each.name != "valid"):
        path = definition.stages[-1].call
        yield _wide(path, definition)
        if path == "balance_loss":
            yield _many(path, definition)
    for path, definition in {**valid, **plain}.items():
        if definition.routed is None and "." not in path:
            yield _wide(path, definition)
            axes = {axis for tensor in definition.inputs.values() for axis in tensor.axes}
            if "tokens" in axes:
                yield _long(path, definition)
            chooses = function(path).choice or "choices" in definition.stages[-1].options
            if "experts" in axes and (counts(path) or chooses or path in SUMS) and path not in WITHOUT_MANY:
                yield _many(path, definition)
            if path.endswith("_loss") and "experts" in axes and path not in SIZES:
                yield _level(path, definition)
            if any((path, axis) not in small for axis in axes & {"tokens", "experts"}):
                yield _one(path, definition)


def counts(path: str) -> bool:
    """Return whether a function's results are indices or counts."""
    outputs = function(path).outputs.values()
    return any(output.kind == "int" or (output.scale == "unit" and "tokens" not in output.axes) for output in outputs)


def _wide(path: str, definition: Definition) -> Definition:
    sizes = {axis: _odd(axis, size) for axis, size in _sizes(path, definition).items()}
    sizes |= SIZES.get(path, {})
    inputs = {}
    for name, tensor in _resized(definition, sizes).items():
        array = _finer(path, name, tensor.array)
        if (
            "logits" in name or f"{path}/{name}" in FAR
        ) and array.ndim > 1:  # far beyond 88.8, where `exp` overflows in float32
            array.reshape(-1, array.shape[-1])[-1] = np.linspace(100.3, -203.7, array.shape[-1])
        inputs[name] = replace(tensor, array=array)
    purpose = "Three groups, odd sizes, numbers of more bits than bfloat16 has."
    name = "odd_sizes" if definition.name == "valid" else f"odd_sizes_{definition.name}"
    return _case(path, definition, name, purpose, inputs, OPTIONS.get(path, {}), gradient=path not in UPDATES)


def _long(path: str, definition: Definition) -> Definition:
    one_number = all("tokens" not in output.axes for output in function(path).outputs.values())
    tokens = INDEXED if counts(path) or one_number or path in BLOCKS else TOKENS
    sizes = {axis: min(size, NARROW.get(axis, size)) for axis, size in _sizes(path, definition).items()}
    inputs = _resized(definition, {**sizes, **ONE, **SIZES.get(path, {}), "tokens": tokens})
    for name, tensor in inputs.items():
        array = _finer(path, name, tensor.array)
        if tensor.axes[-2:] == ("tokens", "experts") and array.dtype.kind == "f":  # most tokens prefer expert 0
            array[..., :-8, :] = np.sort(array[..., :-8, :])[..., ::-1]
        inputs[name] = replace(tensor, array=array)
    return _case(path, definition, "long", f"{tokens} tokens.", inputs, OPTIONS.get(path, {}))


def _many(path: str, definition: Definition) -> Definition:
    experts = EXPERTS if path in SUMS or (counts(path) and path != "required_biases") else FEW
    inputs = _resized(definition, {**_sizes(path, definition), **ONE, "experts": experts, "tokens": 1})
    inputs = {name: replace(tensor, array=_finer(path, name, tensor.array)) for name, tensor in inputs.items()}
    *before, stage = definition.stages
    sizes = {"choices": CHOICES, "capacity": 1}
    options = OPTIONS.get(path, {}) | {name: size for name, size in sizes.items() if name in stage.options}
    before = [replace(each, options=_least(each.options)) for each in before]
    definition = replace(definition, stages=(*before, stage))
    name = "many" if definition.name == "valid" else f"many_{definition.name}"
    return _case(path, definition, name, f"{experts} experts.", inputs, options)


def _level(path: str, definition: Definition) -> Definition:
    """Return the case `level`: two tokens score two experts (high, low) and (low, high), so the order of a sum does not matter."""
    inputs = _resized(definition, {**_sizes(path, definition), "experts": 2, "tokens": 2})
    for name, tensor in inputs.items():
        array = tensor.array
        if tensor.axes[-2:] == ("tokens", "experts"):
            low, high = array.min(axis=(1, 2)), array.max(axis=(1, 2))
            array = np.stack([np.stack([high, low], axis=-1), np.stack([low, high], axis=-1)], axis=1)
        elif tensor.axes == ("experts",):
            array = np.full_like(array, array.max())
        inputs[name] = replace(tensor, array=array)
    purpose = "Experts of equal importance and equal load."
    options = _least(definition.stages[-1].options)
    return _case(path, definition, "level", purpose, inputs, options, gradient=True, flags=())


def _one(path: str, definition: Definition) -> Definition:
    sizes = {**_sizes(path, definition), **ONE, "tokens": 1, "experts": 1, **LEAST_SIZES.get(path, {})}
    inputs = {
        name: replace(tensor, array=tensor.array % sizes["experts"])
        if name in ("expert", "table", "tables")
        else tensor
        for name, tensor in _resized(definition, sizes).items()
    }
    stages = tuple(replace(each, options=_least(each.options)) for each in definition.stages)
    options = {"best": 1} if path == "group_limited_scores" else {}
    made = _case(path, replace(definition, stages=stages), "one", "One token, one expert.", inputs, options)
    return replace(made, exact_ties=True)


LEAST = ("best", "branches", "cap", "capacity", "choices", "groups", "images", "limit", "shards")
"""Options that `_least` sets to 1, for example in a case with one token and one expert."""


def _least(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the options in which every option that `LEAST` names is 1."""
    return {name: 1 if name in LEAST else value for name, value in options.items()}


def _case(
    path: str,
    definition: Definition,
    name: str,
    purpose: str,
    inputs: Mapping[str, Tensor],
    options: Mapping[str, Any] | None = None,
    *,
    gradient: bool = False,
    flags: tuple[str, ...] = ("low_precision",),
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
        flags=flags,
        inputs=inputs,
        by=tuple(name for name in floats if f"{path}/{name}" not in CONSTANT),
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
    """Resize the inputs. To lengthen an axis, repeat its entries in order. To shorten an axis, truncate it. Draw recorded choices anew."""
    resized = {}
    for name, tensor in definition.inputs.items():
        array = tensor.array
        for position, axis in enumerate(tensor.axes):
            array = array.take(np.arange(sizes[axis]) % array.shape[position], axis=position)
        if name == "choices":  # the experts of a token differ
            array = (np.indices(array.shape).sum(axis=0) % sizes["experts"]).astype(np.int32)
        resized[name] = Tensor(array, tensor.axes)
    return resized


def _finer(path: str, name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Make floats distinct, with about 20 bits, by reducing each float by up to 1/8. Replace a token order with a random order."""
    key = f"wide/{path}/{name}"
    if name.rpartition("/")[2] == "order":
        return np.stack([permutation(f"{key}/{row}", array.shape[-1]) for row in range(len(array))])
    if array.dtype.kind != "f" or f"{path}/{name}" in WHOLE:
        return array.copy()
    less = np.abs(grid(key, array.shape, reach=0.125, step=2.0**-18))
    shifted = "logits" in name or f"{path}/{name}" in KINKED
    return (array - less if shifted else array * (1 - less)).astype(np.float32)
