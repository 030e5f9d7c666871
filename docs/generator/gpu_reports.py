"""What the suite found on GPUs: the table in docs/conformance.md, from the reports `conformance/reports/gpu-*.json`.

python -m generator.gpu_reports
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from generator.catalogue import ROOT
from generator.revisions import git
from moespec.conformance.check.results import FAILED
from moespec.conformance.suite import digest
from moespec.models.files import write_atomically

__all__ = ["PAGE", "REPORTS", "placed", "table"]

REPORTS, PAGE = ROOT / "conformance" / "reports", ROOT / "docs" / "conformance.md"
BEGIN, END = "<!-- made by `python -m generator.gpu_reports`, not to be edited -->\n", "<!-- end -->\n"
HEAD = (
    "device",
    "backend",
    "suite",
    "dtype",
    "mode",
    "passed",
    "failed",
    "skipped",
    "what failed, and its error over what is allowed",
)


def table(folder: Path = REPORTS, suite: str | None = None, *, dated: bool = True) -> str:
    """A row for each dtype and mode of each report. suite: the digest of the vectors, by default of the committed ones."""
    suite = digest() if suite is None else suite
    dates = _dates() if dated else {}
    rows = [HEAD, ("---",) * len(HEAD)]
    for path in sorted(folder.glob("gpu-*.json")):
        rows += _rows(path, json.loads(path.read_text(encoding="utf-8")), suite, dates)
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _rows(path: Path, report: dict[str, Any], suite: str, dates: dict[str, str]) -> Iterator[tuple[str, ...]]:
    backend = report["target"].rpartition(".")[2]
    device = path.stem.removeprefix(f"gpu-{backend}-").replace("-", " ").upper()
    age = "the present one" if report["suite"] == suite else "an earlier one"
    made = f"[{report['suite'][:8]}](../conformance/reports/{path.name}), {age}{dates.get(report['suite'], '')}"
    for dtype, mode in dict.fromkeys((case["dtype"], case["mode"]) for case in report["cases"]):
        cases = [case for case in report["cases"] if (case["dtype"], case["mode"]) == (dtype, mode)]
        states = Counter("failed" if case["state"] in FAILED else case["state"] for case in cases)
        counts = states["pass"], states["failed"], len(cases) - states["pass"] - states["failed"]
        wrong = [f"`{case['id']}` {case['fraction'] or 0:.2f}" for case in cases if case["state"] in FAILED]
        yield device, backend, made, dtype, mode, *map(str, counts), ", ".join(wrong)


def _dates() -> dict[str, str]:
    """When each suite was committed, by its digest; nothing outside of a clone."""
    commits = [
        line.split() for line in git(ROOT, "log", "--format=%H %cs", "--", "conformance/suite.json").splitlines()
    ]
    text = {commit: git(ROOT, "show", f"{commit}:conformance/suite.json") for commit, _ in commits}
    return {hashlib.sha256(text[commit].encode()).hexdigest(): f" of {date}" for commit, date in commits}


def placed(page: str, made: str) -> str:
    """The page with another table."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + made + END + rest.partition(END)[2]


if __name__ == "__main__":
    write_atomically(PAGE, placed(PAGE.read_text(encoding="utf-8"), table()).encode())
