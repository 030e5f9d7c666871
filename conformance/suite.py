"""Locate the vectors of the committed suite, and check that no vector is changed, missing or malformed."""

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from moespec.conformance.compare import CONSTANTS, LARGE
from moespec.conformance.format import Case, Expectation, Gradients, Stage, Tensor, Value, VectorError, path_parts
from moespec.conformance.functions import FUNCTIONS, function
from moespec.conformance.manifest import read
from moespec.conformance.matrix_rows import ALGORITHMS
from moespec.models.files import read_file
from moespec.spec.algorithm import Algorithm
from moespec.spec.errors import ConfigError
from moespec.spec.own import is_own
from moespec.version import version

__all__ = [
    *("CLASSES", "VECTORS", "about", "case", "class_of", "digest", "ids", "is_installed", "load", "manifests"),
    *("problems", "require", "sha256", "verify"),
]

VECTORS = Path(__file__).parent / "vectors"
CLASSES = {
    "values": ("value", "degenerate"),
    "ties": ("tie", "near_tie"),
    "overflow": ("overflow",),
    "gradients": ("gradient",),
    "errors": ("negative",),
    "training": ("trajectory",),
    "models": (),
}
"""The words that select cases, each with its case classes; `models` selects the cases of complete models, except training."""
Only = Callable[[str], bool]
Problems = Iterator[tuple[bool, str]]  # pairs: whether a problem exists, and a sentence on the problem


def manifests(folder: Path = VECTORS) -> dict[str, list[Path]]:
    """Returns the paths of the manifests by algorithm. Raises VectorError for a file that is not a vector."""
    paths: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_dir() or path.name.startswith("."):
            continue
        beside = path.suffix == ".safetensors" and path.with_suffix(".json").exists()
        if path.parent.parent != folder or not (beside or path.suffix == ".json"):
            raise VectorError(f"{path}: expected a vector (.json) or its arrays (.safetensors)")
        if not beside:
            paths.setdefault(path.parent.name, []).append(path)
    return paths


def ids(folder: Path = VECTORS) -> set[str]:
    """Returns the ids of all cases without reading the files."""
    return {f"{name}/{path.stem}" for name, paths in manifests(folder).items() for path in paths}


def sha256(path: Path) -> str:
    """Returns the sha256 of a file. The sha256 of `suite.json`, which contains the hashes of all manifests, identifies the suite."""
    return hashlib.sha256(read_file(path)).hexdigest()


def digest(folder: Path = VECTORS) -> str:
    """The suite's digest."""
    return sha256(folder.parent / "suite.json")


def is_installed(wanted: str) -> bool:
    """Whether the wanted version of moespec, and of its suite, is installed; "0.1" matches every "0.1.N"."""
    parts = wanted.split(".")
    return version().split(".")[: len(parts)] == parts


def require(wanted: str) -> None:
    """Raises ConfigError unless the wanted version of moespec, and of its suite, is installed."""
    if not is_installed(wanted):
        raise ConfigError(f"suite: version {wanted!r} is required, but moespec {version()} is installed")


def verify(folder: Path = VECTORS, only: Only = lambda id: True) -> list[Path]:
    """Verifies manifests against `suite.json` and returns the paths of the manifests whose case id `only` accepts.

    Raises VectorError for the first missing or unlisted file of any case, or the first changed file of an accepted case.
    """
    path = folder.parent / "suite.json"
    try:
        suite = json.loads(read_file(path))
        committed = {name: (entry["cases"], dict(entry["sha256"])) for name, entry in suite["algorithms"].items()}
        for name, entry in suite["algorithms"].items():
            if "router" in entry:
                ALGORITHMS.setdefault(name, Algorithm(name, "", int(entry["revision"])))
    except OSError as error:
        raise VectorError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise VectorError(f"{path}: {type(error).__name__}: {error}") from error
    present, chosen = manifests(folder), []
    for name in sorted({*committed, *present}):
        count, digests = committed.get(name, (0, {}))
        paths = {path.stem: path for path in present.get(name, [])}
        for case in sorted({*digests, *paths}):
            if case not in paths:
                raise VectorError(f"{folder / name / case}.json: missing, but listed in {path.name}")
            if case not in digests:
                raise VectorError(f"{paths[case]}: not listed in {path.name}")
            if only(f"{name}/{case}"):
                if digests[case] != sha256(paths[case]):
                    raise VectorError(f"{paths[case]}: modified: its sha256 differs from the one in {path.name}")
                chosen.append(paths[case])
        if count != len(digests):
            raise VectorError(f"{path}: expected {count} cases of {name}, but {len(digests)} are listed")
    return chosen


def load(folder: Path = VECTORS, only: Only = lambda id: True) -> list[Case]:
    """Reads and returns only the cases whose id `only` accepts. Raises VectorError if a case is invalid."""
    return [case(path) for path in verify(folder, only)]


def case(path: Path) -> Case:
    """Reads the case of a manifest. Raises VectorError if the case is invalid."""
    read_ = read(path)
    for problem in problems(read_):
        raise VectorError(f"{path}: {problem}")
    return read_


def about(path: Path) -> tuple[str, list[str]]:
    """Returns the class of a case and the names that its main stages call. A gradient case has one main stage, the differentiated one.

    Does not validate the manifest. Raises VectorError if a required entry is missing.
    """
    kind, _, whole = _outline(path)
    return kind, whole


def class_of(id: str, folder: Path = VECTORS) -> str:
    """Returns the word of `CLASSES` that selects the case with this id. Raises VectorError like `about`."""
    kind, calls, _ = _outline(folder / f"{id}.json")
    if kind != "trajectory" and any(function(call).batched for call in calls):
        return "models"
    return next(word for word, kinds in CLASSES.items() if kind in kinds)


@cache
def _outline(path: Path) -> tuple[str, list[str], list[str]]:
    """Returns the class of a case, the names that its stages call, and the names whose results the case tests."""
    try:
        manifest = json.loads(read_file(path))
        stages, gradients = manifest["stages"], manifest.get("gradients")
        calls = [str(stage["call"]) for stage in stages]
        route = next((i for i, call in enumerate(calls) if call.startswith("ROUTERS.") and call.endswith(".route")), 0)
        whole = [s for s in stages[route:] if s["outputs"] and (gradients is None or gradients["stage"] == s["name"])]
        return str(manifest["class"]), calls, [str(stage["call"]) for stage in whole]
    except Exception as error:  # any exception means that the file is invalid
        raise VectorError(f"{path}: {type(error).__name__}: {error}") from error


def problems(case: Case) -> Iterator[str]:
    """Yields a sentence for each problem in a case that the schema cannot detect."""
    return (sentence for wrong, sentence in _case(case) if wrong)


def _case(case: Case) -> Problems:
    own = any(map(is_own, (stage.router for stage in case.stages)))
    yield case.algorithm not in ALGORITHMS and not own, f"unknown algorithm {case.algorithm!r}"
    yield case.expect is None and not any(stage.outputs for stage in case.stages), "no result is expected"
    for name, tensor in case.inputs.items():
        yield from _tensor(name, tensor, finite=case.kind != "negative")
    for index, stage in enumerate(case.stages):
        yield from _stage(stage, case, {earlier.name: earlier for earlier in case.stages[:index]})
    for name in case.decisions:
        yield name not in [stage.name for stage in case.stages], f"decision of an unknown stage {name!r}"
    yield from _gradients(case.gradients, case) if case.gradients else ()
    yield from _expect(case.expect, case) if case.expect else ()


def _tensor(name: str, value: Tensor | Value, *, finite: bool = True) -> Problems:
    array = value.array
    yield array.ndim != len(value.axes), f"{name}: expected the axes {value.axes}, got shape {array.shape}"
    yield finite and not np.isfinite(array).all(), f"{name}: expected finite numbers"


def _value(name: str, value: Value) -> Problems:
    yield from _tensor(name, value)
    yield value.constant.removeprefix(LARGE) not in CONSTANTS, f"{name}: unknown constant {value.constant!r}"
    if not isinstance(value.scale, str):
        right = value.scale.shape == value.array.shape and (np.isfinite(value.scale) & (value.scale >= 0)).all()
        yield not right, f"{name}: expected a scale of finite numbers >= 0 with the shape of the result"


def _stage(stage: Stage, case: Case, earlier: Mapping[str, Stage]) -> Problems:
    yield stage.name in {*earlier, *case.inputs}, f"duplicate name {stage.name!r}"
    yield from _calls(stage.name, stage.call)
    for name, reference in stage.arguments.items():
        yield from _reference(f"{stage.name}, {name}", reference, case.inputs, earlier)
    for name, value in stage.outputs.items():
        yield from _value(f"{stage.name}/{name}", value)


def _calls(place: str, path: str) -> Problems:
    name = path_parts(path)[0]
    yield name not in {*FUNCTIONS, "identity"} and not is_own(name), f"{place}: unknown function {path!r}"


def _reference(place: str, reference: Any, inputs: Collection[str], earlier: Mapping[str, Stage]) -> Problems:
    if isinstance(reference, Mapping):
        if reference.keys() == {"call", "arguments", "options"}:
            yield from _calls(place, reference["call"])
            reference = reference["arguments"]
        for name, each in reference.items():
            yield from _reference(f"{place}, {name}", each, inputs, earlier)
    elif reference is not None and reference not in inputs:
        name, _, part = reference.partition("/")
        described = function(path_parts(earlier[name].call)[0]).outputs if name in earlier else {}
        known = name in earlier and (not part or part in {"routing", *earlier[name].outputs, *described})
        yield not known, f"{place}: reads {reference!r}, which no earlier stage computes"


def _gradients(gradients: Gradients, case: Case) -> Problems:
    result = {s.name: s.outputs for s in case.stages}.get(gradients.stage, {}).get(gradients.output)
    yield result is None, f"gradients of {gradients.output!r}, but {gradients.stage!r} has no such result"
    yield result is not None and result.array.shape != gradients.probe.array.shape, "the probe has a wrong shape"
    yield from _tensor("probe", gradients.probe)
    losses = [name for s in case.stages if s.name == "route" for name in s.outputs if name.startswith("losses/")]
    yield gradients.losses and not losses, "gradients of losses, but no router has losses"
    for name, value in gradients.wrt.items():
        yield from _value(name, value)
        right = name in case.inputs and case.inputs[name].array.shape == value.array.shape
        yield not right, f"the gradient by {name!r} must have the shape of that input"


def _expect(expect: Expectation, case: Case) -> Problems:
    options = {stage.name: stage.options.keys() for stage in case.stages}.get(expect.stage)
    valid = expect.valid
    yield options is None, f"unknown stage {expect.stage!r}"
    known = {*case.inputs, *(options or ())}
    yield not {*valid.inputs, *valid.options} <= known, "the valid counterpart replaces unknown inputs or options"
    for name, tensor in valid.inputs.items():
        yield from _tensor(name, tensor)
