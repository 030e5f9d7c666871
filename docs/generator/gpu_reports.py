"""Print the table of GPU results in docs/conformance.md from the reports `conformance/reports/gpu-*.json`.

python -m generator.gpu_reports
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from generator.catalogue import ROOT
from generator.revisions import git
from moespec.conformance.check.results import FAILED
from moespec.conformance.peers.measure import counts
from moespec.conformance.suite import digest

REPORTS = ROOT / "conformance" / "reports"
HEAD = "| device | backend | suite | dtype | mode | passed | failed | skipped | failed cases with error / tolerance |"


def rows(folder: Path = REPORTS) -> Iterator[str]:
    """Yield a row for each dtype and mode of each report. For an older suite, the row states the suite's commit date."""
    for path in sorted(folder.glob("gpu-*.json")):
        report = json.loads(path.read_text(encoding="utf-8"))
        backend, suite = report["target"].rpartition(".")[2], report["suite"]
        device = path.stem.removeprefix(f"gpu-{backend}-").replace("-", " ").upper()
        age = "current" if suite == digest() else f"of {_date(suite)}"
        for dtype, mode in dict.fromkeys((case["dtype"], case["mode"]) for case in report["cases"]):
            cases = [case for case in report["cases"] if (case["dtype"], case["mode"]) == (dtype, mode)]
            wrong = ", ".join(f"`{c['id']}` {c['fraction'] or 0:.2f}" for c in cases if c["state"] in FAILED)
            numbers = " | ".join(map(str, counts(cases, dtype)))
            link = f"[{suite[:8]}](../conformance/reports/{path.name}), {age}"
            yield f"| {device} | {backend} | {link} | {dtype} | {mode} | {numbers} | {wrong} |"


def _date(suite: str) -> str:
    """The commit date of a suite; "another" if the git history lacks the suite."""
    for line in git(ROOT, "log", "--format=%H %cs", "--", "conformance/suite.json").splitlines():
        commit, date = line.split()
        if hashlib.sha256(git(ROOT, "show", f"{commit}:conformance/suite.json").encode()).hexdigest() == suite:
            return date
    return "another"


if __name__ == "__main__":
    print(HEAD, "|---" * 9 + "|", *rows(), sep="\n")
