"""The suite as a whole: where the vectors are, how many there must be, and that none was changed or lost."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from moespec.conformance.format import Case, VectorError, read
from moespec.conformance.judge import CONSTANTS, LANES
from moespec.conformance.validity import faults

__all__ = ["FOLDER", "VECTORS", "digest", "flags", "load", "suite_text", "verify"]

FOLDER = Path(__file__).parent
VECTORS = FOLDER / "vectors"

PROVENANCE = (
    "Inputs are drawn from SHAKE-256 of their names, on dyadic grids. Results are computed by moespec.spec in float64, "
    "one routing group at a time; gradients by the complex step, checked by central differences; models and training on "
    "the NumPy backend, which is the specification behind batched names. Made by `python -m moespec.conformance golden`."
)


def _paths(folder: Path) -> dict[str, list[Path]]:
    """The manifests by algorithm. Raises VectorError for a file that is no vector."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_dir() or path.name.startswith("."):
            continue
        beside = path.suffix == ".safetensors" and path.with_suffix(".json").exists()
        if path.parent.parent != folder or not (beside or path.suffix == ".json"):
            raise VectorError(f"{path}: neither a vector nor the arrays of one")
        if not beside:
            found.setdefault(path.parent.name, []).append(path)
    return found


def digest(folder: Path = VECTORS) -> str:
    """The sha256 of `suite.json`, which has those of all manifests: two suites with the same are the same."""
    return _digest(folder.parent / "suite.json")


def _digest(path: Path) -> str:
    """Of a manifest, which holds the hash of the arrays beside it."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def suite_text(folder: Path = VECTORS) -> str:
    """The text of `suite.json` for the vectors in `folder`."""
    content = {
        "schema": 1,
        "provenance": PROVENANCE,
        "lanes": {lane.name: {"dtype": lane.dtype, "roundoff": lane.roundoff} for lane in LANES.values()},
        "constants": {name: {"c": c, "reason": reason} for name, (c, reason) in CONSTANTS.items()},
        "algorithms": {
            name: {"cases": len(paths), "sha256": {path.stem: _digest(path) for path in paths}}
            for name, paths in _paths(folder).items()
        },
    }
    return json.dumps(content, sort_keys=True, indent=1) + "\n"


def verify(folder: Path = VECTORS) -> dict[str, list[Path]]:
    """The manifests by algorithm, after comparing them with `suite.json`. Raises VectorError for the first difference."""
    path = folder.parent / "suite.json"
    try:
        suite = json.loads(path.read_text())
        committed = {name: (entry["cases"], dict(entry["sha256"])) for name, entry in suite["algorithms"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise VectorError(f"{path}: {type(error).__name__}: {error}") from error
    found = _paths(folder)
    for name in sorted({*committed, *found}):
        count, digests = committed.get(name, (0, {}))
        paths = {path.stem: path for path in found.get(name, [])}
        for case in sorted({*digests, *paths}):
            if case not in paths:
                raise VectorError(f"{folder / name / case}.json: missing, {path.name} lists it")
            if case not in digests:
                raise VectorError(f"{paths[case]}: {path.name} does not list it")
            if digests[case] != _digest(paths[case]):
                raise VectorError(f"{paths[case]}: changed, the sha256 is not that of {path.name}")
        if count != len(digests):
            raise VectorError(f"{path}: {count} cases of {name}, but {len(digests)} are listed")
    return found


def load(folder: Path = VECTORS, only: Callable[[str], bool] = lambda id: True) -> list[Case]:
    """The cases whose id `only` accepts. Raises VectorError if anything in the whole suite is not as committed."""
    cases = [_sound(path) for paths in verify(folder).values() for path in paths]
    return [case for case in cases if only(case.id)]


def _sound(path: Path) -> Case:
    case = read(path)
    fault = next(faults(case), None)
    if fault is not None:
        raise VectorError(f"{path}: {fault}")
    return case


def flags() -> dict[str, dict[str, str]]:
    """What each flag means: what goes wrong, and why it matters."""
    found: dict[str, dict[str, str]] = json.loads((FOLDER / "flags.json").read_text())
    return found
