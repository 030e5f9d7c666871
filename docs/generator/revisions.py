"""The algorithms' revisions: their CHANGELOG.md entries, and their sources in the repository's history."""

import ast
import difflib
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from generator.catalogue import ROOT, Page, SiteError
from moespec.spec import ALGORITHMS

ENTRY = re.compile(r"^\* `(?P<name>\w+)`, revision (?P<revision>\d+): (?P<text>.+(?:\n  .+)*)", re.MULTILINE)


@dataclass(frozen=True)
class Change:
    """The change of an algorithm in one revision, and the version of moespec that introduced the revision."""

    name: str
    revision: int
    version: str
    text: str


@dataclass(frozen=True)
class Past:
    """An earlier revision: the last version of its files, and the diff to the files of the next revision."""

    revision: int
    commit: str
    texts: dict[str, str]
    difference: str


def changes(path: Path = ROOT / "CHANGELOG.md") -> list[Change]:
    """The changelog's entries on revisions. Raises SiteError if the entries do not match the specification's revisions."""
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


def past(page: Page, root: Path = ROOT) -> list[Past]:
    """A page's earlier revisions, latest first, as far as the local history reaches."""
    if page.algorithm.revision == 1:
        return []
    files = [Path(module.__file__ or "") for module in page.modules]
    paths = [f"spec/{'routers' if path.parent.name == 'routers' else 'algorithms'}/{path.name}" for path in files]
    last: dict[int, str] = {}
    for commit in git(root, "log", "--format=%H", "--", paths[0], _before(paths[0])).split():
        revision = revision_in(_text(root, commit, paths[0]), page.name)
        if revision and revision < page.algorithm.revision:
            last.setdefault(revision, commit)
    after = {path: (root / path).read_text(encoding="utf-8") for path in paths}
    revisions = []
    for revision, commit in sorted(last.items(), reverse=True):
        texts = {path: text for path in paths if (text := _text(root, commit, path))}
        revisions.append(Past(revision, commit, texts, _difference(texts, after)))
        after = texts
    return revisions


def _text(root: Path, commit: str, path: str) -> str:
    return git(root, "show", f"{commit}:{path}") or git(root, "show", f"{commit}:{_before(path)}")


def _before(path: str) -> str:
    """The path that an algorithm's module had up to version 0.2."""
    return path.replace("spec/algorithms/", "spec/")


def revision_in(source: str, name: str) -> int:
    """The revision of an algorithm that a module's source declares; 0 if it does not declare the algorithm."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "Algorithm" and ast.literal_eval(node.args[0]) == name:
                return int(ast.literal_eval(node.args[2]))
            if node.func.id == "Router":
                return next((ast.literal_eval(each.value) for each in node.keywords if each.arg == "revision"), 1)
    return 0


def _difference(before: dict[str, str], after: dict[str, str]) -> str:
    lines: list[str] = []
    for path in dict.fromkeys([*before, *after]):
        texts = before.get(path, "").splitlines(), after.get(path, "").splitlines()
        lines += difflib.unified_diff(*texts, path, path, lineterm="")
    return "\n".join(lines)


def git(root: Path, *arguments: str) -> str:
    """The output of a git command; empty if git fails, for example outside a clone or for a file that a commit lacks."""
    result = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, check=False)
    return result.stdout.decode(errors="replace") if result.returncode == 0 else ""
