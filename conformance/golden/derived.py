"""Derive error cases from signatures. Each error case is a valid call with one invalid argument.

Argument types and axis names determine the cases: wrong dtypes, NaN and infinity, a missing or extra axis, empty or
mismatched axes, integers out of range, and options of the wrong type or out of range. If a bound depends on other
arguments, `cases` defines the error case explicitly.

The suite contains three error cases per public function. `tests/conformance/golden/test_derived.py` runs all derived
error cases on the specification and on the backends of the package.
"""

import inspect
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import numpy as np

from moespec import spec
from moespec.backends.binding import array_arguments
from moespec.conformance import call
from moespec.conformance.author.definition import Definition, Routed
from moespec.conformance.author.invalid import invalid
from moespec.conformance.author.wide_routers import wide_routers
from moespec.conformance.cases import definitions
from moespec.conformance.cases.errors import WRONG, Size, Wrong
from moespec.conformance.format import Case, Edit, Expectation, Reference, Stage, Tensor
from moespec.conformance.functions import function
from moespec.conformance.functions.describe import GROUPS
from moespec.conformance.golden.wide import wide
from moespec.spec.ranges import Range, option_types

__all__ = ["all_definitions", "derived", "three_each", "valid_calls", "valid_definitions"]

SIZES = ("tokens", "experts", "width")
"""Fields that the options of every router have."""
ROUTING = {"tokens", "experts"}
"""Axes of a routing."""
FIXED = ("words", "pair")
"""Axes with a fixed size."""

# Exceptions to the errors that types imply. Each names `function/argument` or `router/argument`, and some also an axis.
MAY_BE_ZERO = {"branch_rate/block", "hash_table_of/hash", "random_words/stream", "add_gating_noise/multiplier"}
MAY_BE_ZERO |= {"branch_rate/rate", "dropout/rate", "importance_score_order/drop", "importance_score_choice/drop"}
MAY_BE_ZERO |= {"balance_bias/rate", "normalize_selected/epsilon", "router_jitter/epsilon", "moved_thresholds/decay"}
MAY_BE_ZERO |= {"moe_mlp/copies", "moe_mlp/zeros"}
MAY_BE_ZERO |= {"cutoff_mask/warmup_steps", "renewed_cutoffs/decay"}
MAY_BE_ZERO |= {"renewed_controller/gain", "renewed_controller/integral_gain"}
ANY_INTEGERS = {"threefry/key", "threefry/counter", "random_words/origin", "unit_interval/words"}
ANY_INTEGERS |= {f"{name}/choices" for name in ("replay_choices", *spec.ROUTERS)}
UNBOUNDED = {"hash_table_dispersed/clusters", "pair_ids/first", "previous_ids/ids"}
ANY_AXES = {"gelu/x", "smooth_step/z", "unit_interval/words", "project_simplex/values", "project_sparse_simplex/values"}
LEADING = {"dselect_k_entropy/selectors", "dselect_k_reachability/selectors", "dselect_k_routing/gate"}
INTEGERS_TOO = {"hash_table_of/tables", "hash_scores/tables", "hash/tables"}
BROADCAST = {"dropout/draws"}
NOT_READ = {"hash_routing/like", "hash/tokens"}
FREE = {"attention/query/tokens", "hash_routing/ids/tokens", "hash/tables/hashes", "spread_images/scores/tokens"}
NAMED_OTHERWISE = {"noisy_top_k/noise_kernel", "hierarchical_top_k/noise_kernel"}
"""Arrays for which an error names the kernel of `router_logits` instead of the array."""
OTHER_NAMED = {
    "token_choice/scores/tokens",
    "base_routing/scores/tokens",
    "moe_mlp/tokens/width",
    "multi_hash_mlp/tokens/width",
}
OTHER_NAMED |= {"hash_table_clustered/embeddings/width", "masked_gates/gates/tokens", "masked_gates/gates/experts"}
OTHER_NAMED |= {"capacity_loss/logits/tokens", "capacity_loss/logits/experts", "expert_load/scores/tokens"}
OTHER_NAMED |= {"kept_scores/scores/tokens", "kept_scores/scores/experts"}
"""Axes for which an error names only the other array that has the axis."""


LATER = {"balance_loss/choices", "balance_loss/load", "expert_load/keep"}
LATER |= {f"moe_mlp/{name}" for name in ("latent", "constants", "copies", "zeros", "weights_on", "norm_epsilon")}
"""Arguments that are newer than the error cases of their functions. These error cases must stay unchanged."""


# Valid calls.


def valid_calls(cases: Iterable[Case]) -> dict[str, Case]:
    """Return, by path, a valid call of each public function that cases call. Prefer calls with more arrays, then smaller arrays.

    The call is the last stage of a case. An argument's array is the input `argument`; an array within a dict is `argument/key`.
    """
    best: dict[str, tuple[tuple[int, ...], Case]] = {}
    for case in cases:
        if case.expect is not None or case.id.endswith("/wide"):  # wide calls do not read all arrays
            continue
        for stage in case.stages:
            known = function(stage.call)
            if known.run is None and not known.batched:
                alone = _alone(case, stage)
                arrays = [alone.inputs[name].array for name in _own(alone)]
                smallest = min([size for array in arrays for size in array.shape], default=0)
                key = (-len(arrays), -min(2, smallest), sum(tensor.array.size for tensor in alone.inputs.values()))
                if stage.call not in best or key < best[stage.call][0]:
                    best[stage.call] = key, alone
    return {path: case for path, (_, case) in sorted(best.items())}


def _alone(case: Case, stage: Stage) -> Case:
    """Return a case that runs a stage after the earlier calls whose routings the stage reads. All other arguments become inputs."""
    known, stages = call.golden(case), {each.name: each for each in case.stages}
    inputs: dict[str, Tensor] = {}

    def renamed(reference: Reference, name: str) -> Reference:
        if isinstance(reference, str) and reference in known:
            inputs[name] = known[reference]
            return name
        if isinstance(reference, Mapping) and "call" in reference:
            return {**reference, "arguments": renamed(reference["arguments"], name)}
        if isinstance(reference, Mapping):
            return {part: renamed(each, f"{name}/{part}") for part, each in reference.items()}
        return reference

    def moved(each: Stage, prefix: str) -> Stage:
        arguments = {name: renamed(reference, f"{prefix}{name}") for name, reference in each.arguments.items()}
        return replace(each, arguments=arguments, outputs={})

    before = [moved(each, f"{each.name}/") for each in call.earlier(stage, stages, known)[::-1]]
    return replace(case, stages=(*before, moved(stage, "")), inputs=inputs, decisions={}, gradients=None)


def _own(case: Case) -> list[str]:
    """Return the inputs that are arguments of the last call, or parts of arguments, in signature order."""
    stage = case.stages[-1]
    order = [*inspect.signature(call.at(spec, stage.call)).parameters, *stage.arguments]
    names: list[str] = []
    for argument in sorted(stage.arguments, key=order.index):
        reference = stage.arguments[argument]
        parts = reference.values() if isinstance(reference, Mapping) and "call" not in reference else [reference]
        names += [name for name in parts if isinstance(name, str) and name in case.inputs]
    return names


# Error cases.


def derived(valid: Case) -> Iterator[Case]:
    """Yield every error case that follows from the signature of a valid case's last call."""
    stage = valid.stages[-1]
    for name, argument, kind, error, wrong in _wrong_arrays(valid):
        edit = Edit({}, {name: valid.inputs[name]})
        yield _case(valid, stage, f"{argument}_{kind}", error, argument, edit, {**valid.inputs, name: wrong})
    for option, kind, right, changed in _wrong_options(stage):
        wrong_stage = replace(stage, options={**stage.options, **changed})
        yield _case(valid, wrong_stage, f"{option}_{kind}", "ConfigError", option, Edit(right, {}), valid.inputs)


def _case(
    valid: Case, stage: Stage, name: str, error: str, argument: str, edit: Edit, inputs: Mapping[str, Tensor]
) -> Case:
    when = "runtime" if error == "ContractError" else "static"
    expect = Expectation(stage.name, error, argument, when, edit)
    stages = (*valid.stages[:-1], stage)
    id = f"{valid.algorithm}/{stage.call}/{name}"
    return replace(valid, id=id, kind="negative", flags=(), inputs=dict(inputs), stages=stages, expect=expect)


def _wrong_arrays(valid: Case) -> Iterator[tuple[str, str, str, str, Tensor]]:
    """Yield each invalid array as (input, argument, kind of edit, error, edited tensor)."""
    stage = valid.stages[-1]
    kinds, own = array_arguments(call.at(spec, stage.call)), _own(valid)
    for name in own:
        tensor, argument = valid.inputs[name], name.rpartition("/")[2]
        key = f"{stage.router or stage.call}/{argument}"
        others = set(FIXED).union(stage.options, *(valid.inputs[other].axes for other in own if other != name))
        others |= ROUTING if "routing" in stage.arguments else set()
        others |= {*tensor.axes} - {"ids"} if stage.router else {a for a in tensor.axes if tensor.axes.count(a) > 1}
        if key not in NOT_READ | NAMED_OTHERWISE:
            for kind, wrong in _with_other_shapes(tensor, key, others - set(GROUPS), kinds.get(name) == "leading"):
                yield name, argument, kind, "ShapeError", wrong
            for kind, error, wrong in _with_other_values(tensor, key):
                yield name, argument, kind, error, wrong


def _with_other_shapes(tensor: Tensor, key: str, sizes: set[str], leading: bool) -> Iterator[tuple[str, Tensor]]:
    """Yield (kind of edit, edited tensor). sizes: axes whose size another argument sets. leading: whether extra leading axes are valid."""
    array, axes = tensor.array, tensor.axes
    for index, axis in enumerate(axes):
        if axis in sizes and f"{key}/{axis}" not in FREE | OTHER_NAMED:
            if array.shape[index] > 2 or key not in BROADCAST:
                yield f"{axis}_fewer", Tensor(np.delete(array, -1, index), axes)
            yield f"{axis}_more", Tensor(np.concatenate([array, array.take([-1], index)], index), axes)
    if axes and key not in ANY_AXES:
        yield "axis_missing", Tensor(array[..., 0], axes[:-1])
    if not leading and key not in ANY_AXES | LEADING:
        yield "axis_more", Tensor(array[..., None].repeat(2, axis=-1), (*axes, "entries"))
    for index, axis in enumerate(axes):
        if axis not in GROUPS:
            yield f"{axis}_empty", Tensor(np.delete(array, slice(None), index), axes)


def _with_other_values(tensor: Tensor, key: str) -> Iterator[tuple[str, str, Tensor]]:
    """Yield (kind of edit, error, edited tensor). The edited tensor has another dtype or one invalid number."""
    array, kind = tensor.array, tensor.array.dtype.kind
    small = array % 128 if kind == "i" else array  # small integers are exact in every dtype
    for dtype in (np.int32, np.float32, np.bool_):
        if kind != np.dtype(dtype).kind and not (key in INTEGERS_TOO and dtype is np.int32):
            yield np.dtype(dtype).name, "DtypeError", Tensor(small.astype(dtype), tensor.axes)
    numbers: dict[str, float] = {}
    if kind == "f":
        numbers = {"nan": np.nan, "infinite": np.inf, "minus_infinite": -np.inf}
    elif kind == "i" and key not in ANY_INTEGERS:
        numbers = {"below_zero": -1.0} | ({} if key in UNBOUNDED else {"too_large": 2.0**30})
    for name, number in numbers.items():
        wrong = array.copy()
        wrong.flat[array.size // 2] = number
        yield name, "ContractError", Tensor(wrong, tensor.axes)


def _wrong_options(stage: Stage) -> Iterator[tuple[str, str, dict[str, Any], dict[str, Any]]]:
    """Yield (option, kind of edit, valid options, invalid options)."""
    called = call.at(spec, stage.call)
    if stage.router:
        right = stage.options["options"]
        types = _option_types(stage.router)
        wrong = [(name, str(value), {**right, name: value}) for name in types for value in _outside(types[name])]
        wrong += [(size, "missing", {name: right[name] for name in right if name != size}) for size in SIZES]
        for name, kind, changed in [*wrong, ("nonsense", "unknown", {**right, "nonsense": 1})]:
            yield name, kind, {"options": right}, {"options": changed}
        return
    if stage.call.endswith(".update"):
        return  # `update` has the same options as `route`
    hints = get_type_hints(called)
    for name, parameter in inspect.signature(called).parameters.items():
        of_arrays = Mapping in [get_origin(each) for each in get_args(hints[name])]
        if name not in {*array_arguments(called), *stage.arguments} and hints[name] is not bool and not of_arrays:
            for value in _outside(hints[name], zero=f"{stage.call}/{name}" in MAY_BE_ZERO):
                yield name, str(value), {name: stage.options.get(name, parameter.default)}, {name: value}


def _option_types(router: str) -> dict[str, Any]:
    options: Any = spec.ROUTERS[router].Options
    return option_types(options)


def _outside(hint: Any, *, zero: bool = False) -> Iterator[Any]:
    """Yield values that a type excludes. zero: whether 0 is valid for a type without limits."""
    kind = hint if get_origin(hint) in (Annotated, Literal) else (get_args(hint) or (hint,))[0]
    base, limits = get_args(kind)[:2] if get_origin(kind) is Annotated else (kind, None)
    if base is str or get_origin(base) is Literal:
        yield from ("nonsense", 0)
    elif base is bool:
        yield from ("True", 1)
    else:
        yield from (number for number in (0, -1, 2**31, math.inf) if _is_outside(number, base, limits, zero))
        yield from ("1", True, math.nan, *((1.5,) if base is int else ()))


def _is_outside(number: float, base: type, limits: Range | None, zero: bool) -> bool:
    if limits is not None:
        return number not in limits
    return number < 0 or (number == 0 and not zero) or number == math.inf or (base is int and number >= 2**31)


# The suite's error cases.


def valid_definitions(definitions: Iterable[Definition]) -> dict[str, Definition]:
    """Return a valid call of each public function and each router, by path. The inputs of the calls are known before any computation."""
    own: dict[str, list[Case]] = {}
    routers: dict[str, Definition] = {}
    for d in definitions:
        if d.routed is not None and d.kind == "value" and f"ROUTERS.{d.routed.router}.route" not in routers:
            routers[f"ROUTERS.{d.routed.router}.route"] = _small(d, d.routed)
        elif d.routed is None and not any(f"{s.call}/{name}" in LATER for s in d.stages for name in s.arguments):
            case = Case(d.id, d.algorithm, "", "", d.kind, (), dict(d.inputs), d.stages)
            own.setdefault(d.algorithm, []).append(case)
    calls = {}
    for name, cases in own.items():
        functions = {*spec.ALGORITHMS[name].functions} if name in spec.ALGORITHMS else set()
        for path, case in valid_calls(cases).items():
            if path.partition(".")[0] in functions:
                calls[path] = Definition(name, "valid", "value", "", case.inputs, case.stages)
    return {**calls, **routers}


def _small(d: Definition, routed: Routed) -> Definition:
    """Return a router case with fixed tokens instead of drawn tokens."""
    sizes = [routed.groups, *(routed.options[name] for name in ("tokens", "width"))]
    inputs = {name: tensor for name, tensor in d.inputs.items() if not name.startswith("experts/")}
    inputs["tokens"] = Tensor(np.ones(sizes, np.float32), ("groups", "tokens", "width"))
    return replace(d, name="valid", purpose="", inputs=inputs, flags=(), routed=replace(routed, drawn=False, also=()))


SORTS = ("shape", "dtype", "value")


@cache
def all_definitions() -> Mapping[str, Definition]:
    """Return every case of the suite by id: the definitions in `cases`, the wide cases and the error cases."""
    valid, written = valid_definitions(definitions().values()), []
    for path, wrong in WRONG.items():
        for number, each in enumerate(wrong, 1):
            name = _case_name(valid[path], path, f"{each.argument}_{number}")
            written.append(_written(valid[path], name, each))
    more = (*wide(valid, _ones()), *wide_routers(), *written, *three_each(valid, written))
    known = {**definitions(), **{each.id: each for each in more}}
    if len(known) != len(definitions()) + len(more):
        raise ValueError("expected unique case names")
    return known


def _ones() -> set[tuple[str, str]]:
    """Return the (call, axis) pairs for which some case has an input axis of size one."""
    return {
        (stage.call, axis)
        for definition in definitions().values()
        for stage in definition.stages
        for tensor in definition.inputs.values()
        for axis, size in zip(tensor.axes, tensor.array.shape, strict=True)
        if size == 1
    }


def _written(valid: Definition, name: str, wrong: Wrong) -> Definition:
    sizes = {n: s for tensor in valid.inputs.values() for n, s in zip(tensor.axes, tensor.array.shape, strict=True)}
    sizes |= valid.routed.options if valid.routed is not None else valid.stages[-1].options
    inputs = {
        part: Tensor(edit(valid.inputs[part].array), valid.inputs[part].axes) for part, edit in wrong.arrays.items()
    }
    options = {
        option: sizes[value.of] + value.more if isinstance(value, Size) else value
        for option, value in wrong.options.items()
    }
    return invalid(valid, name, wrong.error, wrong.argument, inputs=inputs, options=options, purpose=wrong.purpose)


def _sort(error: str) -> str:
    return {"ShapeError": "shape", "DtypeError": "dtype"}.get(error, "value")


def _rank(case: Case) -> int:
    """Return the preference rank of an error case. Options, which every target can check, and mismatched axes come first."""
    expect = case.expected_error
    is_option = expect.error == "ConfigError" and f"{case.stages[-1].call}/{expect.argument}" not in LATER
    return 0 if is_option or case.id.endswith("_fewer") else 1


def _definition(case: Case, definition: Definition, name: str) -> Definition:
    """Convert a derived case into a definition of the suite."""
    expect, stage = case.expected_error, case.stages[-1]
    return invalid(
        definition,
        name,
        expect.error,
        expect.argument,
        inputs={name: case.inputs[name] for name in expect.valid.inputs},
        options={name: stage.options[name] for name in expect.valid.options},
    )


def three_each(valid: Mapping[str, Definition], written: Iterable[Definition]) -> Iterator[Definition]:
    """Yield error cases until each public function has three: for a shape, for a dtype, and for a value or option.

    Each router gets at least one error case, for an option. The functions that the router calls have error cases for arrays.

    valid: a call of each function. written: the explicitly written error cases.
    """
    known = {(d.stages[-1].call if d.routed is None else d.routed.router, _sort(d.error)) for d in written}
    for path, definition in valid.items():
        if definition.routed is not None and not {(definition.algorithm, sort) for sort in SORTS} & known:
            types = _option_types(definition.routed.router)
            option = [*types][-1]
            wrong = {option: next(_outside(types[option]))}
            yield invalid(definition, "value", "ConfigError", option, options=wrong)
        if definition.routed is None and "." not in path:  # all named capacity rules have the same signature
            case = Case(
                definition.id, definition.algorithm, "", "", "value", (), {**definition.inputs}, definition.stages
            )
            filled = [wrong for wrong in derived(case) if all(tensor.array.size for tensor in wrong.inputs.values())]
            for sort in SORTS:
                cases = [wrong for wrong in filled if _sort(wrong.expected_error.error) == sort]
                if cases and (path, sort) not in known:
                    yield _definition(min(cases, key=_rank), definition, _case_name(definition, path, sort))


def _case_name(definition: Definition, path: str, name: str) -> str:
    """Return the name of an error case. The name contains the function's name unless the algorithm has the same name."""
    called = path.partition(".")[2].partition(".")[0] or path
    return name if called == definition.algorithm else f"{called}_{name}"
