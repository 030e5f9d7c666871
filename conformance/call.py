"""A stage on a module: its arguments from references, the call by name, and its results as arrays.

What a stage reads are arrays: inputs of its case and expected results of earlier stages, so that one wrong decision
does not cascade. Where it reads a routing, that call is made on the module: a target has a routing of its own.
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
    """Experts that change nothing, which references call `identity`."""
    return inputs


def golden(case: Case) -> dict[str, Tensor]:
    """What references of a case may stand for: inputs and expected results, one alone also by the name of its stage."""
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
    """What a stage reads and calls, itself or through a routing, with what it is: array, name or stage."""
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
    """The arrays, of those that are known, that a stage reads itself or through a routing."""
    return _of("array", stage, stages, known)


def earlier(stage: Stage, stages: Stages, known: Collection[str]) -> list[Stage]:
    """The stages whose calls are made again for a stage, since it reads their routings."""
    return [stages[name] for name in _of("stage", stage, stages, known)]


def names(stage: Stage, stages: Stages, known: Collection[str]) -> list[str]:
    """The public names that a stage calls, as paths."""
    return [name for name in _of("name", stage, stages, known) if name != "identity"]


def needs(stage: Stage, stages: Stages, known: Collection[str]) -> list[str]:
    """The paths that a module must have for a stage to be run on it."""
    return [needed for path in names(stage, stages, known) for needed in _needs(function(path), path)]


def _needs(described: Function, path: str) -> tuple[str, ...]:
    return described.needs or ((path,) if described.run is None else ())


def missing(module: Any) -> dict[str, str]:
    """The paths that stages may need and the module does not have, each with the first part that is missing.

    One that raises anything else than an AttributeError is there: it raises in the case that calls it.
    """
    parts: dict[str, str] = {}
    for path in _paths():
        with suppress(Exception):
            if part := _missing(module, path):
                parts[path] = part
    return parts


def _paths() -> Iterator[str]:
    """All that stages may need: functions, those in the specification's tables, and the `route` of routers."""
    for described in FUNCTIONS.values():
        for name in _needs(described, described.name):
            yield name
            table = getattr(spec, name, None)
            if isinstance(table, Mapping):
                yield from (f"{name}.{key}{'.route' if name == ROUTE.name else ''}" for key in table)
    yield from (f"{ROUTE.name}.{key}.update" for key, router in spec.ROUTERS.items() if router.stateful)


def _missing(module: Any, path: str) -> str:
    """The first part of a path that a module does not have, or an empty string."""
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
    """What the call of a stage returns, as a function of the arrays that it reads, with everything static resolved.

    known: the references that are arrays. more: options of a runner besides those stored.
    """
    taken, runner = given(module, stage, stages, known, more), function(stage.call).run
    if runner is not None:
        return lambda values: runner(module, **taken(values))
    called = at(module, stage.call)
    return lambda values: called(**taken(values))


def given(
    module: Any, stage: Stage, stages: Stages, known: Collection[str], more: Values | None = None
) -> Callable[[Values], Values]:
    """The arguments and options of a stage as its call takes them, as a function of the arrays that it reads."""
    getters = {name: _argument(module, each, stages, known) for name, each in stage.arguments.items()}
    options = function(stage.call).prepare({**stage.options, **(more or {})})
    if "options" in options:  # of a router: the record that it makes of them
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
    """A function that is an argument: experts with their parameters."""
    if reference["call"] == "identity":
        return lambda values: identity
    called, options = at(module, reference["call"]), reference["options"]
    parts = {name: _argument(module, each, stages, known) for name, each in reference["arguments"].items()}
    return lambda values: partial(called, **{name: get(values) for name, get in parts.items()}, **options)


def at(module: Any, path: str) -> Any:
    """What is at a path of names and keys; a function of the user's own has its name without the module."""
    value = module
    for part in path_parts(path):
        value = value[part] if isinstance(value, Mapping) else getattr(value, part.rpartition(":")[2])
    return value


def arrays(returned: Any, wanted: Collection[str]) -> Values:
    """What a call returned as arrays by name, which can leave compiled code; `finish` makes the results of them.

    A routing becomes what `routing_arrays` says. wanted: names of results, none for an error case.
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
