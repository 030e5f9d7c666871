"""BibTeX entries: the entries of `docs/references.bib` that a page cites, and the entry of this specification."""

import re
import tomllib
from pathlib import Path

import yaml

from generator.catalogue import ROOT, Page, SiteError
from moespec.spec import ALGORITHMS

REFERENCES = ROOT / "docs" / "references.bib"
ARXIV = re.compile(r"arXiv[: ](\d{4}\.\d{4,5})")


def references(path: Path = REFERENCES) -> dict[str, str]:
    """The BibTeX entries by arXiv number."""
    entries = re.findall(r"^@\w+\{.*?^\}", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    numbered = ((re.search(r"eprint\s*=\s*\{([\d.]+)\}", entry), entry) for entry in entries)
    return {number[1]: entry for number, entry in numbered if number}


def citations(page: Page) -> list[str]:
    """The entries of the papers that a page cites, starting with its row's papers. Raises SiteError if an entry is missing."""
    texts = [page.algorithm.cites, *(module.__doc__ or "" for module in page.modules)]
    known = references()
    numbers = list(dict.fromkeys(number for text in texts for number in ARXIV.findall(text)))
    for number in numbers:
        if number not in known:
            raise SiteError(f"{page.name}: {REFERENCES.name} has no entry with eprint {number}")
    return [known[number] for number in numbers]


def software(page: Page | None = None) -> str:
    """The BibTeX entry of this specification, from CITATION.cff. For a page, the note names the algorithm and its revision."""
    cff = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    fields = {
        "title": cff["title"],
        "author": f"{{{cff['authors'][0]['name']}}}",
        "version": version(),
        "year": str(cff.get("date-released", ""))[:4],
        **{key: cff.get(key) for key in ("doi", "url")},
        "note": f"{page.name}, revision {ALGORITHMS[page.name].revision}" if page else "",
    }
    lines = [f"  {key:7} = {{{value}}}," for key, value in fields.items() if value]
    return "\n".join([f"@software{{moespec_{page.name if page else version()},", *lines, "}"])


def version() -> str:
    """The package's version from pyproject.toml. The folder of the published pages is named after the first two numbers."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])
