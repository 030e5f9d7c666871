"""Read waivers, which list accepted failures in a TOML file. docs/conformance.md describes the entries.

A case that a waiver matches must fail or be skipped. A waived failure counts as skipped. A pass of a waived case counts as a failure,
even if the waiver is a pattern. `expected_failures` of `moespec.conformance.pytest` are waivers with only a pattern and a reason.
"""

import tomllib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from math import inf
from pathlib import Path
from typing import Any

from moespec.conformance.check.results import FAILED, CaseResult
from moespec.conformance.compare import ALL_DTYPES, SHORT, Outcome
from moespec.conformance.matrix_rows import ALGORITHMS
from moespec.models.files import read_file

__all__ = ["Waiver", "WaiverError", "read", "waived"]


class WaiverError(Exception):
    """Raised for a malformed waiver file or a waiver that does not fit the suite. The message names the file and the waiver."""


@dataclass(frozen=True)
class Waiver:
    """One entry of a waiver file. An empty dtype matches all dtypes, and an empty mode all modes."""

    case: str
    reason: str
    dtype: str = ""
    mode: str = ""

    def __str__(self) -> str:
        place = " ".join(filter(None, (self.dtype, self.mode)))
        return f"{self.case} [{place}]" if place else self.case

    def matches(self, name: str) -> bool:
        """Whether the waiver matches a case id or an id with dtype, such as "z_loss/large-float32"."""
        return fnmatchcase(name, self.case)

    def covers(self, id: str, dtype: str, mode: str) -> bool:
        """Whether the waiver covers the case with this id in a dtype and mode."""
        matched = self.matches(id) or self.matches(f"{id}-{dtype}")
        return matched and self.dtype in ("", dtype) and self.mode in ("", mode)


def read(path: Path, ids: Collection[str], modes: Collection[str]) -> list[Waiver]:
    """Reads the waivers in a file. ids: the ids of the suite's cases. modes: the valid values of `mode`.

    Raises WaiverError for the first problem, such as two waivers for one result.
    """
    try:
        content = tomllib.loads(read_file(path).decode())
    except OSError as error:
        raise WaiverError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise WaiverError(f"{path}: not a TOML file ({error})") from error
    entries = content.pop("waiver", [])
    if content or not isinstance(entries, list):
        names = ", ".join(map(repr, content)) or "no list"
        raise WaiverError(f"{path}: expected only [[waiver]] entries, got {names}")
    waivers: list[Waiver] = []
    for number, entry in enumerate(entries, 1):
        place = f"{path}: waiver {number}"
        waiver = _waiver(entry, place, ids, modes)
        for other in waivers:
            same = all(not a or not b or a == b for a, b in ((other.dtype, waiver.dtype), (other.mode, waiver.mode)))
            twice = [id for id in sorted(ids) if same and other.matches(id) and waiver.matches(id)]
            if twice:
                name = "" if waiver.case == twice[0] else f" (both match {twice[0]})"
                raise WaiverError(f"{place}: duplicate waiver for {waiver}{name}")
        waivers.append(waiver)
    return waivers


def _waiver(entry: Any, place: str, ids: Collection[str], modes: Collection[str]) -> Waiver:
    if not isinstance(entry, dict):
        raise WaiverError(f"{place}: expected a table, got {entry!r}")
    types = {"case": str, "revision": int, "reason": str, "dtype": str, "mode": str}
    for key in (*entry, "case", "revision", "reason"):
        if key == "lane":
            raise WaiverError(f"{place}: the key lane was renamed; use dtype")
        if key not in types:
            raise WaiverError(f"{place}: unknown key {key!r}; expected {', '.join(types)}")
        if key not in entry:
            raise WaiverError(f"{place}: {key!r} is missing")
        if type(entry[key]) is not types[key] or entry[key] == "" or str(entry[key]).isspace():
            raise WaiverError(f"{place}: {key}={entry[key]!r}: expected a nonempty {types[key].__name__}")
    dtype = str(entry.get("dtype", ""))
    waiver = Waiver(entry["case"], entry["reason"], SHORT.get(dtype, dtype), entry.get("mode", ""))
    is_pattern = any(sign in waiver.case for sign in "*?[")
    if is_pattern and waiver.case.partition("/")[0] not in ALGORITHMS:
        raise WaiverError(f"{place}: the pattern {waiver.case!r} must begin with the name of an algorithm")
    if not any(waiver.matches(id) for id in ids):
        text = "no case matches" if is_pattern else "unknown case"
        raise WaiverError(f"{place}: {text} {waiver.case!r}; `list` prints all cases")
    for key, value, known in (("dtype", waiver.dtype, ALL_DTYPES), ("mode", waiver.mode, modes)):
        if value and value not in known:
            raise WaiverError(f"{place}: unknown {key} {value!r}; expected {', '.join(known)}")
    revision = ALGORITHMS[waiver.case.split("/")[0]].revision
    if entry["revision"] != revision:
        raise WaiverError(f"{place}: {waiver.case} now has revision {revision}, but the waiver has {entry['revision']}")
    return waiver


def waived(waivers: Iterable[Waiver], result: CaseResult) -> CaseResult:
    """Applies the first waiver that covers a result. A failure becomes "waived", a pass becomes a failure, and other states remain."""
    waiver = next((each for each in waivers if each.covers(result.id, result.dtype, result.mode)), None)
    if waiver is None or result.state not in ("pass", *FAILED):
        return result
    if result.state == "pass":
        outcome = Outcome("waiver", "fail", inf, f"passes, and {waiver} is waived: {waiver.reason}")
        return replace(result, outcomes=[outcome, *result.outcomes])
    first = result.first
    reason = Outcome("waiver", "waived", 0.0, f"{waiver.reason} (first at {first.stage}: {first.message})")
    rest = [replace(o, state="waived") if o.state in FAILED else o for o in result.outcomes]
    return replace(result, outcomes=[reason, *rest])
