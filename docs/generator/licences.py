"""The licences of what moespec installs, as a table: `PYTHONPATH=docs python -m generator.licences [EXTRA ...]`."""

import sys
from collections.abc import Sequence
from importlib.metadata import PackageMetadata, PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

__all__ = ["licences", "table"]


def licences(extras: Sequence[str] = ()) -> dict[str, list[str]]:
    """Licence -> the packages that have it, of all that moespec with these extras needs. "not installed" is one, too."""
    wanted, seen = [Requirement(f"moespec[{','.join(extras)}]")], set[str]()
    found: dict[str, list[str]] = {}
    while wanted:
        need = wanted.pop()
        name = canonicalize_name(need.name)
        if (key := str((name, sorted(need.extras)))) in seen:
            continue
        seen.add(key)
        try:
            package = distribution(name)
        except PackageNotFoundError:
            found.setdefault("not installed", []).append(name)
            continue
        if name not in (*(each for names in found.values() for each in names), "moespec"):
            found.setdefault(_licence(package.metadata), []).append(name)
        for text in package.requires or ():
            other = Requirement(text)
            if not other.marker or any(other.marker.evaluate({"extra": extra}) for extra in ("", *need.extras)):
                wanted.append(other)
    return {licence: sorted(set(names)) for licence, names in sorted(found.items())}


def _licence(about: PackageMetadata) -> str:
    """In one line: the SPDX expression, or the classifiers, or how the text begins."""
    known = [line.rpartition(" :: ")[2] for line in about.get_all("Classifier", []) if line.startswith("License ::")]
    expression, text = (about.get_all(name, [""])[0] for name in ("License-Expression", "License"))
    return expression or ", ".join(known) or text.strip().split("\n")[0] or "not stated"


def table(extras: Sequence[str] = ()) -> str:
    """Markdown."""
    rows = [f"| {licence} | {', '.join(names)} |" for licence, names in licences(extras).items()]
    return "\n".join(["| licence | packages |", "|---|---|", *rows])


if __name__ == "__main__":
    print(table(sys.argv[1:]))
