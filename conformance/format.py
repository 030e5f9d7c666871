"""The vector format: one JSON manifest a case, and a `.safetensors` file beside it for arrays over 64 numbers.

    vectors/<algorithm>/<case>.json, vectors/<algorithm>/<case>.safetensors

`schema.json` describes the manifest. Inputs are float32 (each value exactly representable in bfloat16) or int32; results
are float64 or int32. Small arrays stand in the manifest as nested lists under `data`; a large one has its key in the
safetensors file under `tensor`. NaN and infinity, which only negatives hold, are the strings "nan", "inf", "-inf".
"""

import hashlib
import json
import math
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

__all__ = [
    "KINDS",
    "Case",
    "Expectation",
    "Gradients",
    "StageRecord",
    "Tensor",
    "Twin",
    "Value",
    "VectorError",
    "decode",
    "encode",
    "first_difference",
    "read",
    "to_text",
    "write",
]

SCHEMA = 1
INLINE = 64
"""Arrays of up to this many numbers stand in the manifest."""
KINDS = ("value", "tie", "near_tie", "overflow", "degenerate", "negative", "gradient", "trajectory")
"""The classes of cases."""
DTYPES = ("float32", "float64", "int32")


class VectorError(Exception):
    """A vector file is missing, damaged, or not in the format; the message names the file."""


@dataclass(frozen=True)
class Tensor:
    """An array with the names of its axes."""

    array: NDArray[Any]
    axes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Value:
    """A result: what is expected, and how far from it is still right.

    kind: "int" (exact) or "float". scale: the A of the tolerance `c * u * A`, an array like `array`, or "magnitude" for
    `abs(array)`. constant: the name of c in `judge.CONSTANTS`.
    """

    array: NDArray[Any]
    axes: tuple[str, ...]
    kind: str
    scale: NDArray[Any] | str = "magnitude"
    constant: str = "direct"


@dataclass(frozen=True)
class StageRecord:
    """One stage: the public names it calls, the inputs and earlier results it reads, and its results."""

    name: str
    calls: tuple[str, ...]
    reads: tuple[str, ...]
    outputs: dict[str, Value]


@dataclass(frozen=True)
class Gradients:
    """The gradient of `sum(probe * output)` of one stage, with respect to some of the inputs."""

    stage: str
    output: str
    probe: Tensor
    wrt: dict[str, Value]


@dataclass(frozen=True)
class Twin:
    """The edit that makes a negative valid: inputs and fields of the configuration that replace those of the case."""

    config: dict[str, Any]
    inputs: dict[str, Tensor]


@dataclass(frozen=True)
class Expectation:
    """Of a negative: the class of the error that the stage must raise, and the argument that its message must name.

    when: "static" if the error must also be raised while compiled code is traced, else "runtime".
    """

    stage: str
    error: str
    argument: str
    when: str
    twin: Twin


@dataclass(frozen=True)
class Case:
    """One vector. `decisions` maps a stage to its smallest margin and the margin needed in each lane."""

    id: str
    algorithm: str
    revision: int
    section: str
    cites: str
    purpose: str
    kind: str
    flags: tuple[str, ...]
    config: dict[str, Any]
    inputs: dict[str, Tensor]
    stages: tuple[StageRecord, ...] = ()
    decisions: dict[str, Any] = field(default_factory=dict)
    gradients: Gradients | None = None
    expect: Expectation | None = None

    @property
    def expected_gradients(self) -> Gradients:
        """The gradients of a case that has them."""
        if self.gradients is None:
            raise VectorError(f"{self.id}: there are no gradients")
        return self.gradients

    @property
    def expected_error(self) -> Expectation:
        """The error of a negative."""
        if self.expect is None:
            raise VectorError(f"{self.id}: not a negative")
        return self.expect


def encode(case: Case) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The manifest (without `tensors`) and the arrays that go into the safetensors file."""
    large: dict[str, NDArray[Any]] = {}

    def entry(key: str, array: NDArray[Any]) -> dict[str, Any]:
        array = np.asarray(array, order="C")
        head = {"dtype": str(array.dtype), "shape": list(array.shape)}
        if array.size <= INLINE:
            return {**head, "data": _to_json(array.tolist())}
        large[key] = array
        return {**head, "tensor": key}

    def tensor(key: str, value: Tensor) -> dict[str, Any]:
        return {"axes": list(value.axes), **entry(key, value.array)}

    def result(key: str, value: Value) -> dict[str, Any]:
        encoded = {"kind": value.kind, "axes": list(value.axes), **entry(key, value.array)}
        if value.kind == "float":
            scale = value.scale
            encoded["scale"] = scale if isinstance(scale, str) else entry(f"{key}.scale", scale)
            encoded["constant"] = value.constant
        return encoded

    manifest: dict[str, Any] = {
        "schema": SCHEMA,
        "id": case.id,
        "algorithm": case.algorithm,
        "revision": case.revision,
        "section": case.section,
        "cites": case.cites,
        "purpose": case.purpose,
        "class": case.kind,
        "flags": list(case.flags),
        "config": case.config,
        "inputs": {name: tensor(f"inputs/{name}", value) for name, value in case.inputs.items()},
    }
    if case.expect is None:
        manifest["stages"] = [
            {
                "name": stage.name,
                "calls": list(stage.calls),
                "reads": list(stage.reads),
                "outputs": {name: result(f"{stage.name}/{name}", v) for name, v in stage.outputs.items()},
            }
            for stage in case.stages
        ]
        manifest["decisions"] = case.decisions
    else:
        manifest["expect"] = {
            "stage": case.expect.stage,
            "error": case.expect.error,
            "argument": case.expect.argument,
            "when": case.expect.when,
            "twin": {
                "config": case.expect.twin.config,
                "inputs": {name: tensor(f"twin/{name}", value) for name, value in case.expect.twin.inputs.items()},
            },
        }
    if case.gradients is not None:
        g = case.gradients
        manifest["gradients"] = {
            "stage": g.stage,
            "output": g.output,
            "probe": tensor("gradients/probe", g.probe),
            "wrt": {name: result(f"gradients/{name}", value) for name, value in g.wrt.items()},
        }
    return manifest, large


def decode(manifest: dict[str, Any], large: dict[str, NDArray[Any]]) -> Case:
    """The inverse of `encode`."""

    def array(entry: dict[str, Any]) -> NDArray[Any]:
        if entry["dtype"] not in DTYPES:
            raise ValueError(f"dtype {entry['dtype']!r}, expected one of {', '.join(DTYPES)}")
        if "tensor" not in entry:
            return np.array(_from_json(entry["data"]), entry["dtype"]).reshape(entry["shape"])
        found = large[entry["tensor"]]
        if str(found.dtype) != entry["dtype"] or list(found.shape) != entry["shape"]:
            raise ValueError(f"{entry['tensor']}: {found.dtype}{found.shape} in the safetensors file")
        return found

    def tensor(entry: dict[str, Any]) -> Tensor:
        return Tensor(array(entry), _texts(entry["axes"]))

    def result(entry: dict[str, Any]) -> Value:
        if entry["kind"] != "float":
            return Value(array(entry), _texts(entry["axes"]), _text(entry["kind"]))
        scale = entry["scale"] if isinstance(entry["scale"], str) else array(entry["scale"])
        return Value(array(entry), _texts(entry["axes"]), "float", scale, _text(entry["constant"]))

    def tensors(entries: dict[str, Any]) -> dict[str, Tensor]:
        return {name: tensor(entry) for name, entry in entries.items()}

    def results(entries: dict[str, Any]) -> dict[str, Value]:
        return {name: result(entry) for name, entry in entries.items()}

    def gradients(entry: dict[str, Any]) -> Gradients:
        probe, wrt = tensor(entry["probe"]), results(entry["wrt"])
        return Gradients(_text(entry["stage"]), _text(entry["output"]), probe, wrt)

    def expect(entry: dict[str, Any]) -> Expectation:
        twin = Twin(dict(entry["twin"]["config"]), tensors(entry["twin"]["inputs"]))
        stage, error, argument, when = (_text(entry[name]) for name in ("stage", "error", "argument", "when"))
        return Expectation(stage, error, argument, when, twin)

    if type(manifest["revision"]) is not int or not isinstance(manifest["config"], dict):
        raise TypeError("revision is an integer, and config an object")
    return Case(
        **{name: _text(manifest[name]) for name in ("id", "algorithm", "section", "cites", "purpose")},
        revision=manifest["revision"],
        config=manifest["config"],
        kind=_text(manifest["class"]),
        flags=_texts(manifest["flags"]),
        inputs=tensors(manifest["inputs"]),
        stages=tuple(
            StageRecord(_text(stage["name"]), _texts(stage["calls"]), _texts(stage["reads"]), results(stage["outputs"]))
            for stage in manifest.get("stages", ())
        ),
        decisions=manifest.get("decisions", {}),
        gradients=gradients(manifest["gradients"]) if "gradients" in manifest else None,
        expect=expect(manifest["expect"]) if "expect" in manifest else None,
    )


def write(case: Case, folder: Path) -> None:
    """Write the case below `folder` (the `vectors` folder), byte for byte the same each time."""
    manifest, large = encode(case)
    path = folder / f"{case.id}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".safetensors")
    if large:
        data = save_tensors(large)
        beside.write_bytes(data)
        manifest["tensors"] = {"file": beside.name, "sha256": hashlib.sha256(data).hexdigest()}
    else:
        beside.unlink(missing_ok=True)
    path.write_text(to_text(manifest))


def read(path: Path) -> Case:
    """The case at `path`. Raises VectorError naming the file if anything about it is wrong.

    What is read must be written again as it is: nothing in a manifest or beside it is ignored or completed.
    """
    try:
        manifest = json.loads(path.read_text())
        if manifest["schema"] != SCHEMA:
            raise VectorError(f"{path}: schema {manifest['schema']!r}, expected {SCHEMA}")
        large = _tensors_beside(path, [manifest.pop("tensors")] if "tensors" in manifest else [])
        case = decode(manifest, large)
        again, arrays = encode(case)
        if json.dumps(manifest, sort_keys=True) != json.dumps(again, sort_keys=True):
            found, expected = (line[:100] for line in first_difference(to_text(manifest), to_text(again)))
            raise VectorError(f"{path}: {found!r} is not in the format, which has {expected!r}")
        if arrays.keys() != large.keys():
            raise VectorError(f"{path.with_suffix('.safetensors')}: unused arrays {sorted(large.keys() - arrays)}")
    except VectorError:
        raise
    except Exception as error:  # whatever it is, the file is what is wrong
        raise VectorError(f"{path}: {type(error).__name__}: {error}") from error
    if path.parent.name + "/" + path.stem != case.id or case.id.split("/")[0] != case.algorithm:
        raise VectorError(f"{path}: holds the case {case.id!r} of {case.algorithm!r}")
    return case


def _tensors_beside(path: Path, entries: list[dict[str, str]]) -> dict[str, NDArray[Any]]:
    """The arrays in the safetensors file of the manifest at `path`, of which its entry says name and hash, if any."""
    beside = path.with_suffix(".safetensors")
    if not entries:
        if beside.exists():
            raise VectorError(f"{beside}: {path.name} does not mention it")
        return {}
    (entry,) = entries
    if entry != {"file": beside.name, "sha256": entry["sha256"]}:
        raise VectorError(f"{path}: tensors are in {beside.name}, not in {entry}")
    data = beside.read_bytes()
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise VectorError(f"{beside}: the sha256 is not that of {path.name}")
    try:
        return load_tensors(data)
    except Exception as error:
        raise VectorError(f"{beside}: {type(error).__name__}: {error}") from error


def first_difference(one: str, other: str) -> tuple[str, str]:
    """The first pair of lines that differ, or two empty strings."""
    pairs = zip_longest(one.splitlines(), other.splitlines(), fillvalue="")
    return next(((a.strip(), b.strip()) for a, b in pairs if a != b), ("", ""))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a string, got {value!r}")
    return value


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise TypeError(f"expected a list of strings, got {values!r}")
    return tuple(_text(value) for value in values)


def to_text(manifest: dict[str, Any], indent: int = 0) -> str:
    """JSON with sorted keys, objects over several lines and lists of numbers on one, so that a diff can be read."""
    return _layout(manifest, indent) + "\n"


def _layout(value: Any, indent: int) -> str:
    inner = " " * (indent + 1)
    if isinstance(value, dict) and any(isinstance(item, dict | list) for item in value.values()):
        lines = [f"{inner}{json.dumps(key)}: {_layout(value[key], indent + 1)}" for key in sorted(value)]
        return "{\n" + ",\n".join(lines) + "\n" + " " * indent + "}"
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return "[\n" + ",\n".join(inner + _layout(item, indent + 1) for item in value) + "\n" + " " * indent + "]"
    return json.dumps(value, sort_keys=True, allow_nan=False, separators=(", ", ": "))


def _to_json(data: Any) -> Any:
    if isinstance(data, list):
        return [_to_json(item) for item in data]
    return str(data) if isinstance(data, float) and not math.isfinite(data) else data


def _from_json(data: Any) -> Any:
    if isinstance(data, list):
        return [_from_json(item) for item in data]
    return float(data) if isinstance(data, str) else data
