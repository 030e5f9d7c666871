"""Worked examples: calls of the specification that run during the build. Tables show the inputs and outputs of each call.

A building block's page shows its docstring examples with each call's inputs and outputs. A router's page shows the
router's steps on the specification's worked example, in which the tokens equal their logits.
"""

import doctest
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from generator.catalogue import Page, SiteError
from generator.docstrings import axes_of
from generator.tables import table
from moespec import spec
from moespec.conformance.author.trace import Recorder
from moespec.conformance.call import arrays
from moespec.conformance.format import Stage, finish
from moespec.conformance.functions import FUNCTIONS
from moespec.spec import ROUTERS
from moespec.spec.examples import LOGITS

OPTIONS: dict[str, dict[str, Any]] = {
    "soft_moe": {"slots_per_expert": 2},
    "dselect_k": {"choices": 1, "selector_gamma": 4.0},
}
"""Router options that make the worked example more informative than the default options."""


@dataclass(frozen=True)
class Step:
    """One call: the function, its arguments as source text, and its arrays as tables."""

    call: str
    written: str
    tables: list[str]


@dataclass(frozen=True)
class Routed:
    """The result of a router on the worked example.

    options: non-default options. identity: whether the kernel is the identity, so that tokens are logits; other
    parameters have their initial values. inputs: tables. routing: the result.
    """

    options: dict[str, Any]
    identity: bool
    inputs: list[str]
    steps: list[Step]
    routing: Any


class Traced:
    """A replacement for `moespec.spec` that records calls of its functions."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def __getattr__(self, name: str) -> Any:
        function = name in FUNCTIONS and name not in ("ROUTERS", "CAPACITY_RULES")
        return getattr(self.recorder if function else spec, name)


def steps_of_examples(page: Page) -> list[Step]:
    """The calls in the examples of a page's functions. Raises SiteError if an example fails."""
    recorder, results = _recorder({}, followed=False)
    traced = Traced(recorder)
    modules: dict[str, Any] = sys.modules  # replace only this entry, so that other imports persist
    modules["moespec.spec"] = traced
    try:
        for name, function in page.functions.items():
            known = {**vars(sys.modules[function.__module__])}
            known |= {key: getattr(traced, key) for key in FUNCTIONS if key in known and key in spec.__all__}
            _hold(function, name, known)
    finally:
        modules["moespec.spec"] = spec
    return _distinct(recorder, results)


def _distinct(recorder: Recorder, results: list[Any]) -> list[Step]:
    """The distinct calls. Each array is shown only where it first occurs."""
    steps: dict[tuple[str, ...], Step] = {}
    first: dict[tuple[str, ...], str] = {}
    names: dict[str, str] = {}  # stage -> the first stage with an equal call
    seen: set[str] = set()
    for stage, result in zip(recorder.stages, results, strict=True):
        given, references = recorder.given[stage.name], {}
        for name, reference in stage.arguments.items():
            if isinstance(reference, str):
                call, slash, part = reference.partition("/")
                references[name] = f"{names[call]}{slash}{part}"
        shown = list(_arguments(stage, {name: value for name, value in given.items() if name not in references}))
        written = _written(stage, {**dict.fromkeys(given, ...), **references})
        key = (stage.call, written, *shown)
        names[stage.name] = first.setdefault(key, stage.name)
        fresh = [text for text in shown if text not in seen]
        steps.setdefault(key, Step(stage.call, written, [*fresh, *_results(stage, result)]))
        seen |= set(shown)
    return list(steps.values())


def _recorder(inputs: Mapping[str, Any], **options: bool) -> tuple[Recorder, list[Any]]:
    """A call recorder, and the list to which the recorder adds the results."""
    results: list[Any] = []

    def keep(stage: Stage, result: Any) -> Any:
        results.append(result)
        return result

    return Recorder(spec, inputs, keep, **options), results


def hold(page: Page) -> None:
    """Run the examples in all docstrings of a page. Raises SiteError if one fails."""
    for module in page.modules:
        _hold(module, module.__name__, dict(vars(module)), recurse=True)


def _hold(documented: Any, name: str, known: dict[str, Any], *, recurse: bool = False) -> None:
    runner = doctest.DocTestRunner(verbose=False)
    for example in doctest.DocTestFinder(recurse=recurse).find(documented, name, globs=known):
        said: list[str] = []
        if runner.run(example, out=said.append).failed:
            raise SiteError("".join(said))


def routed(page: Page) -> Routed:
    """Runs a router in evaluation mode on the worked example: six tokens, which equal their logits, and three experts."""
    router = ROUTERS[page.name]
    options = router.options(width=3, experts=3, tokens=6, **OPTIONS.get(page.name, {}))
    initial = router.init(np.random.default_rng(0), options)
    params = {name: np.asarray(value, np.float64) for name, value in initial.items()}
    identity = {name: np.eye(3) for name, value in params.items() if name == "kernel" and value.shape == (3, 3)}
    params |= identity
    state = {name: np.asarray(value, np.float64) for name, value in router.initial_state(options).items()}
    inputs = {"tokens": LOGITS, **{f"params/{name}": value for name, value in params.items()}}
    inputs |= {f"state/{name}": value for name, value in state.items()}
    recorder, results = _recorder(inputs)
    output = recorder.router(page.name).route(params, LOGITS, options, state=state)
    steps = [
        Step(stage.call, _written(stage, stage.arguments), list(_results(stage, result)))
        for stage, result in zip(recorder.stages, results, strict=True)
    ]
    axes = {"tokens": ("tokens", "width"), **axes_of(router.init.__doc__ or "")}
    named = {name.removeprefix("params/"): value for name, value in inputs.items()}
    shown = [table(name, value, axes.get(name, ())) for name, value in named.items()]
    return Routed(OPTIONS.get(page.name, {}), bool(identity), shown, steps, output.routing)


def _written(stage: Stage, arguments: Mapping[str, Any]) -> str:
    """A call's arguments as text: `name=source` for an array with a known source, `name` for other arrays, `name=value` for options."""
    words = {name: name if value is not None else f"{name}=None" for name, value in arguments.items()}
    words |= {
        name: f"{name}={value.removeprefix('params/')}" for name, value in arguments.items() if isinstance(value, str)
    }
    words |= {name: f"{name}={value!r}" for name, value in stage.options.items()}
    return ", ".join(words.values())


def _arguments(stage: Stage, given: Mapping[str, Any]) -> Iterator[str]:
    """Yield the arrays among a call's arguments."""
    axes = axes_of(getattr(spec, stage.call).__doc__ or "")
    for name, value in given.items():
        if name in stage.options:
            continue
        parts = {name: value}
        if isinstance(value, Mapping):
            parts = {f"{name}/{part}": each for part, each in value.items()}
        elif hasattr(value, "_asdict"):
            parts = finish(arrays(value, FUNCTIONS[stage.call].outputs or {"dispatch": 0, "combine": 0}))
        for part, each in parts.items():
            if isinstance(each, (list, tuple, np.ndarray, float, int, np.generic)):
                yield table(part, each, axes.get(name, ()))


def _results(stage: Stage, result: Any) -> Iterator[str]:
    """Yield a call's results; for a sparse routing, its slots and weights."""
    outputs = FUNCTIONS[stage.call].outputs
    for name, value in finish(arrays(result, outputs)).items():
        axes = tuple(axis for axis in FUNCTIONS[stage.call].output(name).axes.split() if axis != "groups")
        yield table(name, value, axes)
