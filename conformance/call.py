"""Run a stage on a module: look up the arrays that the arguments name, call a public function, and return the results as arrays.

A stage reads inputs of its case and the expected results of earlier stages, so a wrong result does not affect later stages.
If a stage reads a routing, the module repeats the call that returned the routing, since each target has its own routing type.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from moespec import spec
from moespec.conformance.format import Case, Reference, Stage, Tensor, path_parts, routing_arrays
from moespec.conformance.functions import FUNCTIONS, function
from moespec.conformance.functions.describe import ROUTE, Function

__all__ = ["arrays", "at", "earlier", "given", "golden", "identity", "missing", "names", "needs", "reads", "result"]

Values = dict[str, Any]
Stages = Mapping[str, Stage]


def identity(inputs: Any) -> Any:
    """Experts that return their input. A reference to these experts has the name `identity`."""
    return inputs


def golden(case: Case) -> dict[str, Tensor]:
    """Returns the inputs and expected results that a reference may name. The name of a stage with one result also refers to this result."""
    values = dict(case.inputs)
    for stage in case.stages:
        for name, value in stage.outputs.items():
            values[f"{stage.name}/{name}"] = Tensor(value.array, value.axes)
        if len(stage.outputs) == 1:
            values[stage.name] = values[f"{stage.name}/{name}"]
    return values


def _is_function(reference: Reference) -> bool:
    return isinstance(reference, Mapping) and reference.keys() == {"call", "arguments", "options"}


def _parts(stage: Stage, stages: Stages, known: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yields (reference, kind) for each array, public name and stage that a stage reads or calls, directly or through a routing."""
    yield stage.call, "name"
    waiting: list[Any] = [*stage.arguments.values()]
    for reference in waiting:
        if reference is None:
            continue
        if _is_function(reference):
            yield reference["call"], "name"
            waiting += reference["arguments"].values()
        elif isinstance(reference, Mapping):
            waiting += reference.values()
        elif reference in known:
            yield reference, "array"
        else:
            name = reference.partition("/")[0]
            yield name, "stage"
            yield from _parts(stages[name], stages, known)


def _of(kind: str, stage: Stage, stages: Stages, known: Collection[str]) -> list[str]:
    return list(dict.fromkeys(part for part, sort in _parts(stage, stages, known) if sort == kind))


def reads(stage: Stage, stages: Stages, known: Collection[str]) -> list[str]:
    """Returns the arrays in `known` that a stage reads, directly or through a routing."""
    return _of("array", stage, stages, known)


def earlier(stage: Stage, stages: Stages, known: Collection[str]) -> list[Stage]:
    """Returns the stages whose routings a stage reads. The module repeats the calls of these stages."""
    return [stages[name] for name in _of("stage", stage, stages, known)]


def names(stage: Stage, stages: Stages, known: Collection[str]) -> list[str]:
    """Returns the paths of the public names that a stage calls."""
    return [name for name in _of("name", stage, stages, known) if name != "identity"]


def needs(stage: Stage, stages: Stages, known: Collection[str]) -> list[str]:
    """Returns the paths of the names that a module must have to run a stage."""
    return [needed for path in names(stage, stages, known) for needed in _needs(function(path), path)]


def _needs(described: Function, path: str) -> tuple[str, ...]:
    return described.needs or ((path,) if described.run is None else ())


def missing(module: Any) -> dict[str, str]:
    """Returns each path that a stage may need and that the module lacks, with the first missing part of the path.

    A path counts as present if its look-up raises an error other than AttributeError. The case that calls the path reports the error.
    """
    parts: dict[str, str] = {}
    for path in _paths():
        with suppress(Exception):
            if part := _missing(module, path):
                parts[path] = part
    return parts


def _paths() -> Iterator[str]:
    """Yields every path that stages may need: functions, functions in the specification's tables, and each router's `route`."""
    for described in FUNCTIONS.values():
        for name in _needs(described, described.name):
            yield name
            table = getattr(spec, name, None)
            if isinstance(table, Mapping):
                yield from (f"{name}.{key}{'.route' if name == ROUTE.name else ''}" for key in table)
    yield from (f"{ROUTE.name}.{key}.update" for key, router in spec.ROUTERS.items() if router.stateful)


def _missing(module: Any, path: str) -> str:
    """Returns the first part of a path that the module lacks, or ""."""
    owner, name = module, ""
    for part in path.split("."):
        if isinstance(owner, Mapping):
            name = f"{name}[{part!r}]"
            if part not in owner:
                return name
            owner = owner[part]
        else:
            name = f"{name}.{part}" if name else part
            if not hasattr(owner, part):
                return name
            owner = getattr(owner, part)
    return ""


def result(
    module: Any, stage: Stage, stages: Stages, known: Collection[str], more: Values | None = None
) -> Callable[[Values], Any]:
    """Returns a function that makes a stage's call from the arrays that the stage reads.

    known: the references that are arrays. more: additional options of the call.
    """
    taken, runner = given(module, stage, stages, known, more), function(stage.call).run
    if runner is not None:
        return lambda values: runner(module, **taken(values))
    called = at(module, stage.call)
    return lambda values: called(**taken(values))


def given(
    module: Any, stage: Stage, stages: Stages, known: Collection[str], more: Values | None = None
) -> Callable[[Values], Values]:
    """Returns a function that turns the arrays read by a stage into the arguments and options of its call."""
    getters = {name: _argument(module, each, stages, known) for name, each in stage.arguments.items()}
    options = function(stage.call).prepare({**stage.options, **(more or {})})
    if "options" in options:  # a router needs an Options record
        owner = stage.call.rpartition(".")[0]
        record = getattr(at(module, owner), "options", None) or at(spec, owner).options
        options = {**options, "options": record(**options["options"])}
    return lambda values: {**{name: get(values) for name, get in getters.items()}, **options}


def _argument(module: Any, reference: Any, stages: Stages, known: Collection[str]) -> Callable[[Values], Any]:
    if reference is None:
        return lambda values: None
    if _is_function(reference):
        return _function(module, reference, stages, known)
    if isinstance(reference, Mapping):
        parts = {name: _argument(module, each, stages, known) for name, each in reference.items()}
        return lambda values: {name: get(values) for name, get in parts.items()}
    if reference in known:
        return lambda values: values[reference]
    name, _, part = reference.partition("/")
    routing = result(module, stages[name], stages, known)
    return (lambda values: getattr(routing(values), part)) if part else routing


def _function(module: Any, reference: Any, stages: Stages, known: Collection[str]) -> Callable[[Values], Any]:
    """Returns a getter for an argument that is a function, such as experts with their parameters."""
    if reference["call"] == "identity":
        return lambda values: identity
    called, options = at(module, reference["call"]), reference["options"]
    parts = {name: _argument(module, each, stages, known) for name, each in reference["arguments"].items()}
    return lambda values: partial(called, **{name: get(values) for name, get in parts.items()}, **options)


def at(module: Any, path: str) -> Any:
    """Returns the object at a path of names and keys. Looks up a custom function by its name, without the name of its module."""
    value = module
    for part in path_parts(path):
        value = value[part] if isinstance(value, Mapping) else getattr(value, part.rpartition(":")[2])
    return value


def arrays(returned: Any, wanted: Collection[str]) -> Values:
    """Converts the return value of a call to a dict of arrays, which compiled code can return. `finish` converts the arrays to results.

    `routing_arrays` converts routings. wanted: the names of the results; empty for an error case.
    """
    if isinstance(returned, Mapping):
        return dict(returned)
    if hasattr(returned, "routing"):
        parts = {name: getattr(returned, name, None) or {} for name in ("losses", "metrics", "statistics")}
        return routing_arrays(returned.routing, sparse="slots" in wanted) | {
            f"{part}/{name}": value for part, values in parts.items() for name, value in values.items()
        }
    if hasattr(returned, "dispatch") or hasattr(returned, "dense"):
        return routing_arrays(returned, sparse="slots" in wanted)
    if hasattr(returned, "_asdict"):
        return {name: part for name, part in returned._asdict().items() if name in wanted or not wanted}
    return {next(iter(wanted), "result"): returned}
