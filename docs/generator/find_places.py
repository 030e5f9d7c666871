"""Find the code that the ambiguity ledger names in copies of its repositories, and write commits and lines.

    python -m generator.find_places FOLDER

A copy is a clone, `FOLDER/OWNER/NAME`, or what an archive of one commit unpacks to, `FOLDER/OWNER/NAME-COMMIT`. The commit
is that of `models/ledger/places.json`; of a repository that it does not have, that of the copy, and `--newest` takes that of
every clone. What is not found is printed; then nothing is written, and the exit status is 1.
"""

import argparse
import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from generator.catalogue import ROOT
from moespec.models.files import write_atomically
from moespec.models.ledger.places import code, places
from moespec.spec import LEDGER

__all__ = ["find", "line_of", "named"]

PLACES = ROOT / "models" / "ledger" / "places.json"


def named() -> dict[str, dict[str, set[str]]]:
    """What the ledger names: the functions and classes by repository and path."""
    found: dict[str, dict[str, set[str]]] = {}
    takers = (taker for entry in LEDGER.values() for reading in entry.readings for taker in reading.takers)
    for taker in takers:
        if "/" in taker.who:
            place = code(taker.where)
            found.setdefault(taker.who, {}).setdefault(place.path, set()).update(place.names)
    return {who: dict(sorted(found[who].items())) for who in sorted(found, key=str.casefold)}


def line_of(text: str, name: str, path: str) -> int | None:
    """The line, from 1, where the function or class `name` begins, as in "Class.method"; None if it is not there."""
    if not path.endswith(".py"):  # C++: a name before a parenthesis, in a line that is no statement
        defined = re.compile(rf"^(?!\s*(?:return|//))[^;=]*[\w>*&]\s+{re.escape(name)}\s*\([^;]*$")
        return next((line for line, words in enumerate(text.splitlines(), 1) if defined.match(words)), None)
    scope: ast.AST = ast.parse(text)
    for part in name.split("."):
        found = next((node for node in _below(scope) if part in _names(node)), None)
        if found is None:
            return None
        scope = found
    return getattr(scope, "lineno", None)


def _below(scope: ast.AST) -> Iterator[ast.AST]:
    """What is defined in a scope, the outermost first."""
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop(0)
        yield node
        waiting += ast.iter_child_nodes(node)


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    return [ast.unparse(target) for target in node.targets] if isinstance(node, ast.Assign) else []


def find(folder: Path, newest: bool) -> tuple[dict[str, Any], list[str]]:
    """The commits and lines of all that the ledger names, and a sentence for each thing that no copy has."""
    found: dict[str, Any] = {}
    missing = []
    for repository, paths in named().items():
        clone = folder / repository
        known = places().get(repository, {}).get("commit")
        commit = _git(clone, "rev-parse", "HEAD") if clone.is_dir() and (newest or not known) else known
        if commit is None:
            missing.append(f"{repository}: {clone} is not there")
            continue
        lines: dict[str, dict[str, int]] = {}
        for path, names in paths.items():
            text = _text(clone, commit.strip(), path)
            if text is None:
                missing.append(f"{repository}: {path} is not in commit {commit.strip()}, or its copy not in {folder}")
                continue
            at = {name: line_of(text, name, path) for name in sorted(names)}
            missing += [f"{repository}: {path} has no {name}" for name, line in at.items() if line is None]
            lines[path] = {name: line for name, line in at.items() if line is not None}
        found[repository] = {"commit": commit.strip(), "lines": lines}
    return found, missing


def _text(clone: Path, commit: str, path: str) -> str | None:
    file = clone.with_name(f"{clone.name}-{commit}") / path
    if file.exists():
        return file.read_text(encoding="utf-8")
    return _git(clone, "show", f"{commit}:{path}") if clone.is_dir() else None


def _git(clone: Path, *arguments: str) -> str | None:
    done = subprocess.run(["git", "-C", str(clone), *arguments], capture_output=True, check=False)
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


def main() -> int:
    """The exit status: 0 if everything was found and written."""
    parser = argparse.ArgumentParser(prog="python -m generator.find_places", description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="of the copies: FOLDER/OWNER/NAME or FOLDER/OWNER/NAME-COMMIT")
    parser.add_argument("--newest", action="store_true", help="take the newest commit of each clone")
    options = parser.parse_args()
    found, missing = find(options.folder, options.newest)
    print(*missing, sep="\n", end="\n" if missing else "")
    if not missing:
        write_atomically(PLACES, (json.dumps(found, indent=1) + "\n").encode())
        print(f"{sum(len(lines) for each in found.values() for lines in each['lines'].values())} names in {PLACES}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
