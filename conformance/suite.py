"""The suite as a whole: where the vectors are, how many there must be, and that none was changed or lost."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from moespec.conformance.format import Case, VectorError, read, to_text
from moespec.conformance.judge import CONSTANTS, LANES

__all__ = ["FOLDER", "VECTORS", "flags", "load", "suite_text", "verify"]

FOLDER = Path(__file__).parent
VECTORS = FOLDER / "vectors"

PROVENANCE = (
    "Inputs are drawn from SHAKE-256 of their names, on dyadic grids. Results are computed by moespec.spec in float64, "
    "one routing group at a time; gradients by the complex step, checked by central differences; models and training on "
    "the NumPy backend, which is the specification behind batched names. Made by `python -m moespec.conformance golden`."
)


def _algorithms(folder: Path) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*/*.json")):
        found.setdefault(path.parent.name, []).append(path)
    return found


def _digest(paths: list[Path]) -> str:
    """A hash of the names and bytes of the manifests, which hold the hashes of the arrays beside them."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.stem}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def suite_text(folder: Path = VECTORS) -> str:
    """The text of `suite.json` for the vectors in `folder`."""
    found = _algorithms(folder)
    return to_text(
        {
            "schema": 1,
            "provenance": PROVENANCE,
            "lanes": {lane.name: {"dtype": lane.dtype, "roundoff": lane.roundoff} for lane in LANES.values()},
            "constants": {name: {"c": c, "reason": reason} for name, (c, reason) in CONSTANTS.items()},
            "algorithms": {name: {"cases": len(p), "sha256": _digest(p)} for name, p in found.items()},
        }
    )


def verify(folder: Path = VECTORS) -> dict[str, Any]:
    """The content of `suite.json`, after comparing it with the files. Raises VectorError for the first difference."""
    path = folder.parent / "suite.json"
    try:
        suite: dict[str, Any] = json.loads(path.read_text())
        committed = suite["algorithms"]
    except (OSError, ValueError, KeyError) as error:
        raise VectorError(f"{path}: {type(error).__name__}: {error}") from error
    found = _algorithms(folder)
    for name in sorted({*committed, *found}):
        want, paths = committed.get(name, {}).get("cases", 0), found.get(name, [])
        if want != len(paths):
            raise VectorError(f"{folder / name}: {len(paths)} cases, {path.name} says {want}")
        if committed[name]["sha256"] != _digest(paths):
            raise VectorError(f"{folder / name}: a vector was changed, the sha256 is not that of {path.name}")
    return suite


def load(folder: Path = VECTORS, only: Callable[[str], bool] = lambda id: True) -> list[Case]:
    """The cases whose id `only` accepts. Raises VectorError if anything in the whole suite is not as committed."""
    verify(folder)
    paths = [path for paths in _algorithms(folder).values() for path in paths]
    return [read(path) for path in paths if only(f"{path.parent.name}/{path.stem}")]


def flags() -> dict[str, dict[str, str]]:
    """What each flag means: what goes wrong, and why it matters."""
    found: dict[str, dict[str, str]] = json.loads((FOLDER / "flags.json").read_text())
    return found
