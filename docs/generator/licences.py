"""The licences of what moespec installs, as a table of Markdown: `PYTHONPATH=docs python -m generator.licences [EXTRA ...]`."""

import sys
from importlib.metadata import PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def licences(need: Requirement, found: dict[str, str], seen: set[str]) -> dict[str, str]:
    """Package -> licence, of a requirement and of all that it needs, added to those `found`; `seen` are the requirements done."""
    name = canonicalize_name(need.name)
    if (key := f"{name}{sorted(need.extras)}") not in seen:
        seen.add(key)
        try:
            about = distribution(name)
        except PackageNotFoundError:
            return found | {name: "not installed"}
        lines = [line for line in about.metadata.get_all("Classifier", []) if line.startswith("License ::")]
        expression, text = (about.metadata.get_all(field, [""])[0] for field in ("License-Expression", "License"))
        classified = ", ".join(line.rpartition(" :: ")[2] for line in lines)
        found = found | {name: expression or classified or text.strip().split("\n")[0] or "not stated"}
        for other in map(Requirement, about.requires or ()):
            if not other.marker or any(other.marker.evaluate({"extra": extra}) for extra in ("", *need.extras)):
                found = licences(other, found, seen)
    return found


if __name__ == "__main__":
    of = licences(Requirement(f"moespec[{','.join(sys.argv[1:])}]"), {}, set())
    del of["moespec"]
    print("| licence | packages |", "|---|---|", sep="\n")
    for licence in sorted(set(of.values())):
        print(f"| {licence} | {', '.join(sorted(name for name in of if of[name] == licence))} |")
