"""Defines a recording: one safetensors file with the logits, choices and weights of each gate, and with a checksum in the metadata.

    <index>/logits   (tokens, experts)    float32, or float64
    <index>/choices  (tokens, choices)    int32, -1 for a choice not made; an expert occurs at most once per row
    <index>/weights  (tokens, choices)    of the choices; 0 for a choice not made
    <index>/bias     (experts,)           added to scores only for the choice

The metadata entry `moespec_recording` is JSON with `format`, `version`, `moespec` and the checksum `tensors`. For each gate,
in the order of the gates' first calls, the entry lists the `name`, the token counts of all `calls`, and the `dtypes` of the computation.
`recording_schema.json` defines the entry.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.conformance.check.files import FileError
from moespec.conformance.manifest import check
from moespec.models.files import read_file, signed, unsigned, write_atomically
from moespec.models.tensors import sealed, unsealed
from moespec.spec.values import present

__all__ = ["PARTS", "Gate", "read", "write"]

FORMAT, VERSION, KEY = "moespec recording", 1, "moespec_recording"
PARTS = ("logits", "choices", "weights", "bias")
ROUNDING = {"float64": 2.0**-40, "float16": 2.0**-9, "bfloat16": 2.0**-7}
"""The relative error that a few roundings cause, by dtype. In float32, it is 2^-19."""
LONGEST = 300
"""The maximum number of characters in a gate's name."""
MOST, LARGEST = 2**16, 2**28
"""The maximum number of experts per gate and, for a gate without logits, the maximum of tokens * experts."""


@dataclass(frozen=True)
class Gate:
    """The results of all calls of one gate. Arrays that were not recorded are None.

    logits: (tokens, experts). choices, weights: (tokens, choices). bias: (experts,). calls: the number of tokens in
    each call. dtypes: the original dtype of each array, by name.
    """

    name: str
    calls: tuple[int, ...]
    dtypes: Mapping[str, str]
    logits: NDArray[Any] | None = None
    choices: NDArray[Any] | None = None
    weights: NDArray[Any] | None = None
    bias: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for values that no gate can compute."""
        rows = sum(self.calls)
        if not self.name.isprintable() or not 0 < len(self.name) <= LONGEST:
            raise ValueError(f"{self.name[:LONGEST]!r}: expected a name of 1 to {LONGEST} printable characters")
        if self.logits is None and self.choices is None:
            raise ValueError(f"{self.name}: expected logits or choices")
        if self.weights is not None and (self.choices is None or self.weights.shape != self.choices.shape):
            raise ValueError(f"{self.name}: weights have shape {self.weights.shape}, expected the shape of choices")
        for part in ("logits", "choices", "weights"):
            array = getattr(self, part)
            if array is not None and (array.ndim != 2 or len(array) != rows or not array.size):
                raise ValueError(f"{self.name}: {part}: expected shape ({rows} tokens, 1 or more), got {array.shape}")
        if self.choices is not None and self.choices.dtype.kind != "i":
            raise ValueError(f"{self.name}: choices: expected integers")
        if self.experts > MOST or (self.logits is None and rows * self.experts > LARGEST):
            most = f"expected at most {MOST} experts and {LARGEST} pairs of a token and an expert"
            raise ValueError(f"{self.name}: has {self.experts} experts and {rows} tokens, {most}")
        for part in ("logits", "weights", "bias"):
            array = getattr(self, part)
            if array is not None and (array.dtype.kind != "f" or not np.isfinite(array).all()):
                got = f"NaN or inf at {np.argwhere(~np.isfinite(array))[0]}" if array.dtype.kind == "f" else array.dtype
                raise ValueError(f"{self.name}: {part}: expected finite floats, got {got}")
        if self.bias is not None and self.bias.shape != (self.experts,):
            raise ValueError(f"{self.name}: bias: expected shape ({self.experts} experts,), got {self.bias.shape}")
        if self.choices is not None:
            if self.choices.min() < -1 or self.choices.max() >= self.experts:
                raise ValueError(f"{self.name}: choices: expected integers from -1 to {self.experts - 1}")
            ordered = np.sort(self.choices, axis=1)
            if ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any():
                raise ValueError(f"{self.name}: choices: a token chooses an expert twice")

    @property
    def tokens(self) -> int:
        """The number of tokens in all calls."""
        return sum(self.calls)

    @property
    def experts(self) -> int:
        """The number of experts: the width of the logits or, without logits, the largest choice plus 1."""
        if self.logits is not None:
            return int(self.logits.shape[1])
        return 0 if self.choices is None else int(self.choices.max()) + 1

    @property
    def chosen(self) -> NDArray[Any]:
        """The choices. Raises ContractError if no choices were recorded."""
        return present(f"{self.name}: choices", self.choices)

    @property
    def mask(self) -> NDArray[np.bool_]:
        """A boolean mask (tokens, experts) of the experts that each token chooses."""
        mask = np.zeros((self.tokens, self.experts + 1), bool)
        np.put_along_axis(mask, self.chosen.astype(np.int64), True, axis=1)  # -1 selects the extra last column
        return mask[:, :-1]

    def rounding(self, *parts: str) -> float:
        """Return the relative error that a few roundings cause in the least precise dtype among these arrays."""
        return max(ROUNDING.get(self.dtypes.get(part, ""), 2.0**-19) for part in parts)


def write(path: Path, gates: Sequence[Gate]) -> None:
    """Write a recording atomically."""
    every = {f"{i}/{part}": getattr(gate, part) for i, gate in enumerate(gates) for part in PARTS}
    arrays = {name: array for name, array in every.items() if array is not None}
    record = {"format": FORMAT, "version": VERSION, "moespec": version("moespec"), "tensors": _digest(arrays)}
    record["gates"] = [{"name": gate.name, "calls": list(gate.calls), "dtypes": dict(gate.dtypes)} for gate in gates]
    write_atomically(path, sealed(arrays, {KEY: signed(record, indent=None).decode()}))


def read(path: Path | str) -> list[Gate]:
    """Read the gates of a recording. Raises FileError, which names the file, if the file is not a recording."""
    try:
        tensors, metadata = unsealed(read_file(Path(path)), half=True)
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise FileError(f"{path}: {error}") from error
    if KEY not in metadata:
        raise FileError(f"{path}: not a recording (no {KEY!r} in its metadata)")
    try:
        return _gates(unsigned(metadata[KEY].encode()), {name: tensor.array for name, tensor in tensors.items()})
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise FileError(f"{path}: {error if type(error) is ValueError else f'damaged ({error!r})'}") from error


def _gates(record: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> list[Gate]:
    if record["format"] != FORMAT or record["version"] != VERSION:
        own = f"{record['format']!r} version {record['version']!r}"
        raise ValueError(f"expected {FORMAT!r} version {VERSION}, got {own}")
    if record["tensors"] != _digest(arrays):
        raise ValueError("damaged: its checksum does not match its tensors")
    if unknown := [name for name in arrays if not re.fullmatch(rf"\d+/({'|'.join(PARTS)})", name)]:
        raise ValueError(f"{unknown[0]!r} is not an array name of a recording")
    check(record, "recording_schema.json")
    gates = []
    for i, entry in enumerate(record["gates"]):
        parts = (arrays.get(f"{i}/{part}") for part in PARTS)
        gates.append(Gate(entry["name"], tuple(entry["calls"]), entry["dtypes"], *parts))
    if len({gate.name for gate in gates}) < len(gates):
        raise ValueError("duplicate gate names")
    return gates


def _digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return the checksum of names, shapes, dtypes and numbers."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.shape} {array.dtype.str} ".encode() + array.tobytes())
    return digest.hexdigest()
