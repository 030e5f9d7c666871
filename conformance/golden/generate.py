"""Generate the golden vectors from the case definitions, and compare committed vectors with newly generated vectors.

Inputs, integers and manifests are compared byte for byte. Floats may differ by twice the float64 tolerance (by `8 * u * A`
if a formula has no iterations), because the last bits of `exp` and of sums depend on the CPU's instruction set. Any other
difference means that the specification's results changed. A commit that changes results must also increase the
algorithm's `revision`. `suite.json` stores the revision of each algorithm's vectors.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from moespec.conformance.author.build import build
from moespec.conformance.author.definition import Definition
from moespec.conformance.compare import CONSTANTS, DTYPES, tolerance
from moespec.conformance.format import Case, GoldenError, Value
from moespec.conformance.functions import FUNCTIONS
from moespec.conformance.golden.derived import all_definitions
from moespec.conformance.manifest import SCHEMA, encode, first_difference, read, to_text, write
from moespec.conformance.matrix_rows import ALGORITHMS
from moespec.conformance.suite import VECTORS, manifests, problems, sha256, verify
from moespec.spec.errors import ConfigError
from moespec.spec.own import is_own

__all__ = ["MADE", "StaleError", "differences", "generate", "suite_text"]

MADE = replace(DTYPES["float64"], least=0.0)
"""The dtype in which committed and new vectors are compared."""

PROVENANCE = (
    "Inputs are drawn from SHAKE-256 of their names, on dyadic grids. Results are computed by moespec.spec in float64, "
    "one routing group at a time; gradients by the complex step, checked by central differences; models and training "
    "on the NumPy backend, which is the specification behind batched names. Made by `python -m moespec.conformance "
    "golden`."
)


ADVICE = (
    "\nWhere the specification computes something else than the committed vectors, and that is meant, raise the revision of "
    "the algorithm in its module of moespec.spec, or of your Router, and make the vectors again."
)
"""The advice that StaleError gives if a new vector differs from the committed vector."""


class StaleError(Exception):
    """Raised if a case cannot be generated, a vector has no definition, or a vector differs at an unchanged revision."""


def generate(
    folder: Path = VECTORS,
    *,
    check: bool = False,
    only: Callable[[str], bool] = lambda id: True,
    report: Callable[[str], None] = print,
    own: Mapping[str, Definition] | None = None,
) -> int:
    """Generate every case, and write new and changed cases or, if `check` is true, compare the cases. Returns their number.

    Each case is written immediately, so a later failure loses no cases. own: definitions by id, which replace the package's definitions.
    Raises ConfigError at the start if `folder` has no vectors to compare with, or if foreign files would be overwritten.
    Raises StaleError at the end and lists all problems: cases that cannot be generated, vectors without a definition, and committed cases
    that differ at an unchanged revision. After a StaleError, the differing vectors and `suite.json` are unchanged.
    """
    chosen = [id for id in own or all_definitions() if only(id)]
    _check_folder(folder, chosen if check else ())
    revisions = _revisions(folder)
    stale: list[str] = []
    advice, written = "", 0
    for id, result in ((id, partial(_build, id, own)) for id in chosen) if own else _built(chosen):
        try:
            case = result()
        except Exception as error:
            stale.append(f"{id}: {type(error).__name__}: {error}")
            continue
        path = folder / f"{case.id}.json"
        committed = read(path) if path.exists() else None
        if committed is None:
            if check:
                stale.append(f"{case.id}: missing vector; create it with `golden`")
                continue
        else:
            difference = differences(committed, case)
            if not difference:
                continue
            if check or ALGORITHMS[case.algorithm].revision <= revisions.get(case.algorithm, 0):
                stale.append(f"{case.id}: {difference}")
                advice = ADVICE
                continue
        write(case, folder)
        written += 1
    stale += _undefined(folder, set(chosen), only)
    for name in sorted({id.split("/")[0] for id in chosen}) if check else ():
        if name in revisions and revisions[name] != (now := ALGORITHMS[name].revision):
            stale.append(f"{name}: suite.json has revision {revisions[name]}, the specification {now}")
    if stale:
        raise StaleError("\n".join(sorted(stale)) + advice)
    if check:
        verify(folder)
        report(f"{len(chosen)} cases as committed")
    else:
        (folder.parent / "suite.json").write_text(suite_text(folder))
        report(f"{len(chosen)} cases made, {written} written")
    return len(chosen)


def _check_folder(folder: Path, compared: Sequence[str]) -> None:
    """Raise ConfigError if the folder contains no vector of `compared` or, if `compared` is empty, if vectors cannot be written there."""
    name, suite = f"vectors={str(folder)!r}", folder.parent / "suite.json"
    if compared:
        if not any((folder / f"{id}.json").is_file() for id in compared):
            raise ConfigError(f"{name}: no vectors in this folder")
    elif folder.resolve() == VECTORS.resolve() and not (VECTORS.resolve().parents[1] / "pyproject.toml").is_file():
        raise ConfigError(f"{name}: belongs to the installed package; set --vectors FOLDER")
    elif folder.exists() and not folder.is_dir():
        raise ConfigError(f"{name}: not a folder")
    elif others := [entry.name for entry in folder.glob("*") if not any(entry.glob("*.json"))]:
        raise ConfigError(f"{name}: contains {min(others)!r}, which has no vectors; choose another folder")
    elif suite.exists() and b'"provenance"' not in suite.read_bytes():
        raise ConfigError(f"{name}: {suite} is not a suite of vectors and would be overwritten; choose another folder")


def _revisions(folder: Path) -> dict[str, int]:
    """Return the revisions of the algorithms that have vectors in `folder`, from the `suite.json` beside the folder."""
    path = folder.parent / "suite.json"
    algorithms = json.loads(path.read_text())["algorithms"] if path.exists() else {}
    return {name: int(entry["revision"]) for name, entry in algorithms.items() if "revision" in entry}


def suite_text(folder: Path = VECTORS) -> str:
    """Return the text of `suite.json` for the vectors in `folder`."""
    content = {
        "schema": SCHEMA,
        "provenance": PROVENANCE,
        "dtypes": {name: {"roundoff": dtype.roundoff, "least": dtype.least} for name, dtype in DTYPES.items()},
        "constants": {name: {"c": c, "reason": reason} for name, (c, reason) in CONSTANTS.items()},
        "rounded": {
            name: kept
            for name, known in sorted(FUNCTIONS.items())
            if (kept := [result for result, output in known.outputs.items() if output.rounded])
        },
        "algorithms": {
            name: {
                "revision": ALGORITHMS[name].revision,
                **({"router": router} if is_own(router := "".join(ALGORITHMS[name].functions)) else {}),
                "cases": len(paths),
                "sha256": {path.stem: sha256(path) for path in paths},
            }
            for name, paths in manifests(folder).items()
        },
    }
    return json.dumps(content, sort_keys=True, indent=1) + "\n"


def _built(chosen: list[str]) -> Iterator[tuple[str, Callable[[], Case]]]:
    """Yield the id of each case and a function that returns the case. One process per core generates the cases."""
    slow_first = sorted(chosen, key=lambda id: all_definitions()[id].kind != "trajectory")
    with ProcessPoolExecutor(os.cpu_count() or 1) as pool:
        waiting = {pool.submit(_build, id): id for id in slow_first}
        for future in tqdm(as_completed(waiting), "golden", len(chosen), unit="case", disable=None):
            yield waiting[future], future.result


def _build(id: str, own: Mapping[str, Definition] | None = None) -> Case:
    case = build((own or all_definitions())[id])
    if own and (difference := differences(case, build(own[id]))):
        raise GoldenError(f"computing the case twice gave different results: {difference}")
    for problem in problems(case):
        raise GoldenError(problem)
    return case


def _undefined(folder: Path, known: set[str], only: Callable[[str], bool]) -> list[str]:
    ids = [f"{path.parent.name}/{path.stem}" for path in sorted(folder.glob("*/*.json"))]
    return [f"{id}: vector without a definition" for id in ids if only(id) and id not in known]


def differences(committed: Case, made: Case) -> str:
    """Return a description of the first difference beyond the tolerance, or "" if there is none."""
    before, now = first_difference(*(to_text(_skeleton(encode(case)[0])) for case in (committed, made)))
    if before != now:
        return f"the manifest says {before!r}, now {now!r}"
    for name, tensor in committed.inputs.items():
        if not np.array_equal(tensor.array, made.inputs[name].array, equal_nan=True):
            return f"the input {name} differs"
    pairs = [
        (f"{a.name}/{name}", value, b.outputs[name])
        for a, b in zip(committed.stages, made.stages, strict=True)
        for name, value in a.outputs.items()
    ]
    if committed.gradients is not None and made.gradients is not None:
        pairs += [
            (f"gradient/{name}", value, made.gradients.wrt[name]) for name, value in committed.gradients.wrt.items()
        ]
    for name, a, b in pairs:
        if difference := _value_difference(a, b):
            return f"{name}: {difference}"
    for stage, decided in committed.decisions.items():
        margins = decided["margin"], made.decisions[stage]["margin"]
        if None not in margins and abs(margins[0] - margins[1]) > 0.02 * abs(margins[0]):
            return f"{stage}: the margin was {margins[0]}, now {margins[1]}"
    return ""


def _value_difference(a: Value, b: Value) -> str:
    if a.kind != "float":
        return "" if np.array_equal(a.array, b.array) else f"{np.count_nonzero(a.array != b.array)} integers differ"
    excess = ~(np.abs(a.array - b.array) <= 2 * tolerance(a, MADE))  # NaN always exceeds the tolerance
    if excess.any():
        return f"{np.count_nonzero(excess)} floats differ, by up to {np.abs(a.array - b.array).max():.3g}"
    if not isinstance(a.scale, str) and not np.allclose(a.scale, b.scale, rtol=0.02, atol=0):
        return "the scale differs"
    return ""


def _skeleton(manifest: Mapping[str, Any]) -> Any:
    """Return the manifest without the floats that other machines may round differently."""
    if isinstance(manifest, list):
        return [_skeleton(item) for item in manifest]
    if not isinstance(manifest, dict):
        return manifest
    return {
        key: None
        if key in ("data", "margin", "sha256") or (key == "scale" and isinstance(value, dict))
        else _skeleton(value)
        for key, value in manifest.items()
    }
