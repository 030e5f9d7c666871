"""Write cases deterministically as manifests and safetensors files. Read only files with the content that `write` would give them."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import zip_longest
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save as save_tensors

from moespec.conformance.format import Case, Stage, Tensor, Value, VectorError
from moespec.models import tensors
from moespec.models.files import read_file

__all__ = [
    "SCHEMA",
    "check",
    "decode",
    "decoded",
    "encode",
    "encoded",
    "first_difference",
    "parse",
    "read",
    "to_text",
    "write",
]

SCHEMA = 3
VECTORS = Path(__file__).parent / "vectors"
LONGEST = 80
"""The maximum length of the invalid value in an error message about a schema violation."""
INLINE = 64  # larger arrays are stored in the safetensors file

Arrays = dict[str, NDArray[Any]]
_types = cache(get_type_hints)


def encode(case: Case) -> tuple[dict[str, Any], Arrays]:
    """Returns the manifest of a case, without the entry `tensors`, and the arrays for its safetensors file."""
    large: Arrays = {}
    entries = encoded(case, "", large)
    absent = {"kind", "decisions" if case.expect else ""}
    entries = {key: value for key, value in entries.items() if key not in absent}
    return {"schema": SCHEMA, "class": case.kind, **entries}, large


def encoded(value: Any, key: str, large: Arrays) -> Any:
    """Returns a dataclass or a field's value as JSON. Stores each large array in `large`, under the array's path in the case."""
    if isinstance(value, Tensor):
        return {"axes": list(value.axes), **_entry(key, value.array, large)}
    if isinstance(value, Value):
        entry = {"kind": value.kind, "axes": list(value.axes), **_entry(key, value.array, large)}
        if value.kind == "float":
            scale = value.scale
            entry["scale"] = scale if isinstance(scale, str) else _entry(f"{key}.scale", scale, large)
            entry["constant"] = value.constant
        return entry
    if is_dataclass(value):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
        value = {name: part for name, part in parts.items() if part is not None}
        if value.get("losses") is False:  # false is the default
            del value["losses"]
    if isinstance(value, Mapping):
        return {name: encoded(each, f"{key}/{name}" if key else name, large) for name, each in value.items()}
    if isinstance(value, tuple):
        return [encoded(each, f"{key}/{each.name}" if isinstance(each, Stage) else key, large) for each in value]
    return "inf" if isinstance(value, float) and value == math.inf else value


def _entry(key: str, array: NDArray[Any], large: Arrays) -> dict[str, Any]:
    array = np.asarray(array, order="C")
    head = {"dtype": str(array.dtype), "shape": list(array.shape)}
    if array.size <= INLINE:
        finite = np.isfinite(array)
        data = array if finite.all() else np.where(finite, array.astype(object), array.astype(str))
        return {**head, "data": data.tolist()}
    large[key] = array
    return {**head, "tensor": key}


def decode(manifest: Mapping[str, Any], large: Arrays) -> Case:
    """Returns the case that a manifest and its large arrays describe. `decode` is the inverse of `encode`."""
    entry = {"kind" if key == "class" else key: value for key, value in manifest.items() if key != "schema"}
    case: Case = decoded(Case, entry, large)
    return case


def decoded(kind: Any, entry: Any, large: Arrays) -> Any:
    """Returns a value of type `kind` from its JSON form. Inverts `encoded`. Raises an exception if the entry does not fit the type."""
    if kind is Tensor:
        return Tensor(_array(entry, large), decoded(tuple[str, ...], entry["axes"], large))
    if kind is Value:
        tensor, kind = decoded(Tensor, entry, large), entry["kind"]
        if kind != "float":
            return Value(tensor.array, tensor.axes, _expected(str, kind))
        scale = entry["scale"] if isinstance(entry["scale"], str) else _array(entry["scale"], large)
        return Value(tensor.array, tensor.axes, kind, scale, _expected(str, entry["constant"]))
    if isinstance(kind, type) and is_dataclass(kind):
        types = _types(kind)
        return kind(**{name: decoded(types[name], each, large) for name, each in _expected(dict, entry).items()})
    first, *more = (each for each in get_args(kind) if each is not NoneType) if get_args(kind) else (kind,)
    if get_origin(kind) is tuple:
        return tuple(decoded(first, each, large) for each in _expected(list, entry))
    if get_origin(kind) is dict:
        records = is_dataclass(more[0])
        entries = _expected(dict, entry).items()
        return {name: decoded(more[0], each, large) if records else _numbers(each) for name, each in entries}
    return decoded(first, entry, large) if is_dataclass(first) else _expected(first, entry)


def _numbers(entry: Any) -> Any:
    """Returns the options with each text "inf" replaced by infinity, which JSON cannot represent."""
    if isinstance(entry, Mapping):
        return {name: _numbers(each) for name, each in entry.items()}
    return math.inf if entry == "inf" else entry


def _expected(kind: type, entry: Any) -> Any:
    if type(entry) is not kind:
        raise TypeError(f"expected {kind.__name__}, got {entry!r}")
    return entry


def _array(entry: Mapping[str, Any], large: Arrays) -> NDArray[Any]:
    if entry["dtype"] not in ("float32", "float64", "int32", "bool"):
        raise ValueError(f"unknown dtype {entry['dtype']!r}")
    if "tensor" not in entry:
        return np.array(entry["data"], entry["dtype"]).reshape(entry["shape"])  # NumPy parses "nan" and "inf"
    array = large[entry["tensor"]]
    if str(array.dtype) != entry["dtype"] or list(array.shape) != entry["shape"]:
        raise ValueError(f"{entry['tensor']}: is {array.dtype}{[*array.shape]}, not {entry['dtype']}{entry['shape']}")
    return array


def write(case: Case, folder: Path) -> None:
    """Writes the files of a case into the vectors folder `folder`."""
    manifest, large = encode(case)
    path, beside = folder / f"{case.id}.json", folder / f"{case.id}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    if large:
        data = save_tensors(large)
        beside.write_bytes(data)
        manifest["tensors"] = {"file": beside.name, "sha256": hashlib.sha256(data).hexdigest()}
    else:
        beside.unlink(missing_ok=True)
    path.write_text(to_text(manifest))


def parse(text: str) -> Any:
    """Parses JSON in which all numbers are finite. Raises ValueError or RecursionError for any other text."""
    return json.loads(text, parse_float=_finite, parse_constant=_finite)


def _finite(text: str) -> float:
    """Parse a number. Raises ValueError for NaN, infinity and numbers too large for a double."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"expected a finite number, got {text}")
    return number


def read(path: Path) -> Case:
    """Reads the case at `path`. Raises VectorError, which names the file, if the file is invalid.

    The schema is checked only for manifests outside the package. A test checks the package's manifests, whose hashes are in
    `suite.json`. Encoding the case again must give the same JSON values, so unknown or missing entries are errors.
    """
    try:
        manifest = parse(read_file(path).decode())
        if manifest["schema"] != SCHEMA:
            raise VectorError(
                f"{path}: has schema {manifest['schema']!r}, but this version of moespec reads schema {SCHEMA}"
            )
        if VECTORS not in path.parents:  # do not resolve links, which an editable installation may use
            check(manifest, "schema.json")
        large = _tensors_beside(path, manifest.pop("tensors", ...))
        manifest.pop("revision", None)  # older manifests contain a revision
        case = decode(manifest, large)
        again, arrays = encode(case)
        if json.dumps(manifest, sort_keys=True) != json.dumps(again, sort_keys=True):
            actual, expected = (line[:100] for line in first_difference(to_text(manifest), to_text(again)))
            raise VectorError(f"{path}: expected {expected!r}, got {actual!r}")
        if arrays.keys() != large.keys():
            raise VectorError(f"{path.with_suffix('.safetensors')}: unused arrays {sorted(large.keys() - arrays)}")
    except Exception as error:  # any exception means that the file is invalid
        if isinstance(error, VectorError):
            raise
        raise VectorError(f"{path}: {type(error).__name__}: {error}") from error
    if path.parent.name + "/" + path.stem != case.id or case.id.split("/")[0] != case.algorithm:
        raise VectorError(f"{path}: the file name does not match its case {case.id!r} of {case.algorithm!r}")
    return case


def check(content: Any, schema: str) -> None:
    """Raises ValueError unless the content matches `schema.json`, `report_schema.json` or `recording_schema.json`.

    The error message is short and names the location.
    """
    try:
        from jsonschema.exceptions import best_match
    except ImportError as error:
        raise ValueError("jsonschema is not installed. Install it: pip install 'moespec[conformance]'") from error
    worst = best_match(_validator(schema).iter_errors(content))
    if worst is not None:
        value = repr(worst.instance)
        message = worst.message.replace(value, value if len(value) <= LONGEST else f"{value[:LONGEST]}…")
        raise ValueError(f"{worst.json_path[-LONGEST:]}: {message[: 3 * LONGEST]}")


@cache
def _validator(schema: str) -> Any:
    """Returns a validator that accepts neither `true` nor 1.0 as an integer."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    types = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    content = json.loads(Path(__file__).with_name(schema).read_text())
    return extend(Draft202012Validator, type_checker=types)(content)


def _tensors_beside(path: Path, entry: Any) -> Arrays:
    """Reads the arrays in the safetensors file next to `path`. Checks the file's name and hash against the manifest."""
    beside = path.with_suffix(".safetensors")
    if entry is ... and not beside.exists():
        return {}
    if entry is ...:
        raise VectorError(f"{beside}: not listed in {path.name}")
    if entry["file"] != beside.name:
        raise VectorError(f"{path}: expected its tensors in {beside.name}, got {entry['file']!r}")
    data = read_file(beside)
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise VectorError(f"{beside}: its sha256 differs from the one in {path.name}")
    try:
        return {name: tensor.array for name, tensor in tensors.decoded(data).items()}
    except ValueError as error:
        raise VectorError(f"{beside}: {error}") from error


def first_difference(one: str, other: str) -> tuple[str, str]:
    """Returns the first pair of lines that differ, or two empty strings if the texts are equal."""
    pairs = zip_longest(one.splitlines(), other.splitlines(), fillvalue="")
    return next(((a.strip(), b.strip()) for a, b in pairs if a != b), ("", ""))


def to_text(value: Any) -> str:
    """Returns JSON whose diffs are readable: keys are sorted, objects take several lines, and lists of numbers take one line."""
    return _layout(value, 0) + "\n"


def _layout(value: Any, indent: int) -> str:
    inner = " " * (indent + 1)
    if isinstance(value, dict) and any(isinstance(item, dict | list) for item in value.values()):
        lines = [f"{inner}{json.dumps(key)}: {_layout(value[key], indent + 1)}" for key in sorted(value)]
        return "{\n" + ",\n".join(lines) + "\n" + " " * indent + "}"
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return "[\n" + ",\n".join(inner + _layout(item, indent + 1) for item in value) + "\n" + " " * indent + "]"
    return json.dumps(value, sort_keys=True, allow_nan=False, separators=(", ", ": "))
