"""The revisions of the algorithms: what CHANGELOG.md says of each."""

import re
from dataclasses import dataclass
from pathlib import Path

from generator.catalogue import ROOT, SiteError
from moespec.spec import ALGORITHMS

ENTRY = re.compile(r"^\* `(?P<name>\w+)`, revision (?P<revision>\d+): (?P<text>.+(?:\n  .+)*)", re.MULTILINE)


@dataclass(frozen=True)
class Change:
    """What a revision of an algorithm changed, and in which version it came."""

    name: str
    revision: int
    version: str
    text: str


def changes(path: Path = ROOT / "CHANGELOG.md") -> list[Change]:
    """All that the changelog says of revisions. Raises SiteError if it lacks one that the specification has."""
    log = []
    for section in re.split(r"^## ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        for entry in ENTRY.finditer(section):
            text = " ".join(entry["text"].split())
            log.append(Change(entry["name"], int(entry["revision"]), section.split(maxsplit=1)[0], text))
    told = {(change.name, change.revision) for change in log}
    revisions = {(name, number) for name, each in ALGORITHMS.items() for number in range(2, each.revision + 1)}
    for name, revision in sorted(revisions - told):
        raise SiteError(f"{path.name}: no entry '* `{name}`, revision {revision}: ...'")
    for name, revision in sorted(told - revisions):
        raise SiteError(f"{path.name}: there is no revision {revision} of `{name}`")
    return log
