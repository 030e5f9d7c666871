"""BibTeX: the entries of `docs/references.bib` that a page needs, and how this specification is cited."""

import re
import tomllib
from pathlib import Path

from generator.catalogue import ROOT, Page
from moespec.spec import ALGORITHMS

__all__ = ["CitationError", "citations", "software", "version"]

REFERENCES = ROOT / "docs" / "references.bib"
ARXIV = re.compile(r"arXiv[: ](\d{4}\.\d{4,5})")


class CitationError(Exception):
    """A paper that the specification cites is not among the references."""


def references(path: Path = REFERENCES) -> dict[str, str]:
    """The entries by arXiv number."""
    entries = re.findall(r"^@\w+\{.*?^\}", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    numbered = ((re.search(r"eprint\s*=\s*\{([\d.]+)\}", entry), entry) for entry in entries)
    return {number[1]: entry for number, entry in numbered if number}


def citations(page: Page) -> list[str]:
    """The entries of the papers that a page names, those of its row first. Raises CitationError if one is missing."""
    texts = [page.algorithm.cites, *(module.__doc__ or "" for module in page.modules)]
    known = references()
    numbers = list(dict.fromkeys(number for text in texts for number in ARXIV.findall(text)))
    for number in numbers:
        if number not in known:
            raise CitationError(f"{page.name}: {REFERENCES.name} has no entry with eprint {number}")
    return [known[number] for number in numbers]


def software(page: Page | None = None) -> str:
    """The entry of this specification, with the algorithm and revision of a page in its note. From CITATION.cff."""
    cff = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    fields = dict(re.findall(r'^([\w-]+): "?(.*?)"?$', cff, re.MULTILINE))
    author = re.search(r'- name: "(.*?)"', cff)
    lines = [
        f"  title   = {{{fields['title']}}},",
        f"  author  = {{{{{author[1] if author else ''}}}}},",
        f"  version = {{{version()}}},",
    ]
    lines += [f"  year    = {{{released[:4]}}},"] if (released := fields.get("date-released")) else []
    lines += [f"  {key:7} = {{{fields[key]}}}," for key in ("doi", "url") if fields.get(key)]
    if page:
        lines.append(f"  note    = {{{page.name}, revision {ALGORITHMS[page.name].revision}}},")
    return "\n".join([f"@software{{moespec_{page.name if page else version()},", *lines, "}"])


def version() -> str:
    """That of the package, as in pyproject.toml: the first two numbers name its pages."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])
