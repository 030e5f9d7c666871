"""Search copies of repositories for the code that the ambiguity ledger and "Source:" entries name, and write commits and line numbers.

    python -m generator.find_places FOLDER

A copy is a clone, `FOLDER/OWNER/NAME`, or a commit's unpacked archive, `FOLDER/OWNER/NAME-COMMIT`. A "Source:" may set
the commit: "OWNER/NAME@COMMIT". Otherwise, the command uses the repository's commit in `spec/implementations/places.json` or, if the
file lacks the repository, the clone's HEAD. If a name is missing, the command prints the name, writes nothing and exits with status 1.
"""

import argparse
import ast
import json
import re
import sys
from pathlib import Path

from generator.catalogue import ROOT
from generator.revisions import git
from moespec.models.files import write_atomically
from moespec.spec import LEDGER
from moespec.spec.implementations.places import code, places
from moespec.spec.ledger import Implementation

PLACES = ROOT / "spec" / "implementations" / "places.json"
REPOSITORY = r"(?<![\w./-])[\w.-]+/[\w-]+(?:@[0-9a-f]{40})?(?=, )"
NAME = r"\w+(?:\.\w+)*"
PLACE = re.compile(rf"({REPOSITORY}), ([\w./+-]+\.\w+(?:, {NAME}(?: and {NAME})*(?=\.?$|[.;,] | \())?)")


def sources() -> list[str]:
    """The text after each "Source:" in the specification's docstrings, as one line."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "spec").rglob("*.py"))]
    found = [source for text in texts for source in re.findall(r"^ *Source: ((?:.+\n)+)", text, re.MULTILINE)]
    return [" ".join(source.split()) for source in found]


def cited(source: str) -> list[Implementation]:
    """The code locations that a "Source:" names. Raises ValueError if a repository is not followed by a file path."""
    found = [Implementation(*place) for place in PLACE.findall(source)]
    if len(re.findall(REPOSITORY, source)) != len(found):
        raise ValueError(
            f"Source: {source!r}: expected a file after each repository, as in owner/name, path/file.py, gate"
        )
    return found


def named() -> dict[str, dict[str, set[str]]]:
    """The functions and classes named by the ledger and the sources, by repository and path."""
    found: dict[str, dict[str, set[str]]] = {}
    cited_code = [each for entry in LEDGER.values() for reading in entry.readings for each in reading.implementations]
    cited_code += [each for source in sources() for each in cited(source)]
    for implementation in sorted(cited_code, key=lambda each: (each.who.casefold(), each.where)):
        if "/" in implementation.who:
            place = code(implementation.where)
            found.setdefault(implementation.who, {}).setdefault(place.path, set()).update(place.names)
    return found


def line_of(text: str, name: str, path: str) -> int | None:
    """The line, from 1, where the function or class `name` (such as "Class.method") begins; None if it is missing."""
    if not path.endswith(".py"):  # C++: the name before a parenthesis, in a line that is not a statement
        begins = re.compile(rf"^(?!\s*(?:return|//))[^;=]*[\w>*&]\s+{re.escape(name)}\s*\([^;]*$")
        return next((line for line, words in enumerate(text.splitlines(), 1) if begins.match(words)), None)
    scope: ast.AST = ast.parse(text)
    for part in name.split("."):  # `ast.walk` yields outer nodes first
        found = next((node for node in ast.walk(scope) if node is not scope and part in _defined(node)), None)
        if found is None:
            return None
        scope = found
    return getattr(scope, "lineno", None)


def _defined(node: ast.AST) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    return [ast.unparse(target) for target in node.targets] if isinstance(node, ast.Assign) else []


def find(folder: Path) -> tuple[dict[str, dict[str, object]], list[str]]:
    """The commit of each repository, the line of each named function or class, and a sentence for each missing name."""
    found: dict[str, dict[str, object]] = {}
    missing = []
    for repository, paths in named().items():
        name, _, commit = repository.partition("@")
        clone, known = folder / name, places().get(repository)
        commit = commit or (known["commit"] if known else git(clone, "rev-parse", "HEAD").strip())
        lines: dict[str, dict[str, int]] = {}
        for path, names in paths.items():
            file = clone.with_name(f"{clone.name}-{commit}") / path
            text = file.read_text(encoding="utf-8") if file.exists() else git(clone, "show", f"{commit}:{path}")
            at = {name: line_of(text, name, path) for name in sorted(names)} if text else {}
            missing += [f"{repository}: {path} has no {name}" for name, line in at.items() if line is None]
            missing += [] if text else [f"{repository}: no copy in {folder} has {path} at commit {commit or 'HEAD'}"]
            lines[path] = {name: line for name, line in at.items() if line is not None}
        found[repository] = {"commit": commit, "lines": lines}
    return found, missing


def main() -> int:
    """Find all named code and write `places.json`. Returns 0 if everything was found, else 1."""
    parser = argparse.ArgumentParser(prog="python -m generator.find_places", description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="folder of the copies: FOLDER/OWNER/NAME or FOLDER/OWNER/NAME-COMMIT")
    found, missing = find(parser.parse_args().folder)
    print(*missing or [f"found every named file and function in {len(found)} repositories"], sep="\n")
    if not missing:
        write_atomically(PLACES, (json.dumps(found, indent=1) + "\n").encode())
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
