"""Web addresses of the sources in the ledger: papers, lines of public code, and measured packages.

For each repository, `places.json` contains a commit and, by path, the line numbers of the functions and classes that the ledger names.
`python -m generator.find_places` (in docs/) writes `places.json` from clones of the repositories and checks that each name exists.
"""

import json
import re
import sys
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from moespec.spec.ledger import Implementation

__all__ = ["Code", "addresses", "code", "link", "link_papers", "of_package", "places"]

_ARXIV = re.compile(r"arXiv[ :](\d{4}\.\d{4,5})")
_LINKABLE = re.compile(rf"(?ms)^<[^\n]*|```.*?^ *```|`[^`\n]*`|\[[^\]]*\]\([^)]*\)|{_ARXIV.pattern}")
_CODE = re.compile(r"(?P<path>[\w./+-]+\.\w+)(?:, (?P<names>[\w.]+(?: and [\w.]+)*)(?=$| \(|, ))?(?P<rest>.*)")


class Code(NamedTuple):
    """A code location in the ledger: the path of a file in a repository, the names of functions or classes, and a remark."""

    path: str
    names: tuple[str, ...]
    rest: str


def code(where: str) -> Code:
    """Splits a code location, such as "moe.py, MoE.gate and top_k (the default)", into the file, the names and the remark.

    Raises ValueError unless the location begins with the path of a file.
    """
    if not (match := _CODE.fullmatch(where)):
        raise ValueError(f"{where!r}: expected a file path, then the name of a function or class")
    return Code(match["path"], tuple(match["names"].split(" and ")) if match["names"] else (), match["rest"])


@cache
def places() -> dict[str, Any]:
    """Maps each repository to its commit and line numbers: {"commit": ..., "lines": {path: {name: line}}}."""
    return dict(json.loads(files(__package__).joinpath("places.json").read_text()))


def addresses(implementation: Implementation, module: str) -> list[str]:
    """Returns the web addresses of the code or paper that `implementation` names. `module`: the module of the ledger entry.

    The list has an address for each function or class, a single address for a file or paper, or no address if none is known.
    """
    if "/" not in implementation.who:
        text = _own_paper(module) if implementation.who == "the paper" else implementation.who
        return [_of_paper(number) for number in _ARXIV.findall(text)[:1]]
    place, known = code(implementation.where), places().get(implementation.who)
    if not known or not known["lines"].get(place.path, {}).keys() >= set(place.names):
        return []
    file = f"https://github.com/{implementation.who}/blob/{known['commit']}/{place.path}"
    return [f"{file}#L{known['lines'][place.path][name]}" for name in place.names] or [file]


def _own_paper(module: str) -> str:
    """Returns the citation of a module's paper: the header of the symbol table or, without a table, the first algorithm's citation."""
    table = re.search(r"^\| here \|(.*)$", sys.modules[module].__doc__ or "", re.MULTILINE)
    return table[1] if table else str(sys.modules[module].ALGORITHMS[0].cites)


def link(implementation: Implementation, module: str) -> str:
    """Returns the name and location of an implementation as Markdown, with links to the paper or to the code."""
    found, where = addresses(implementation, module), f", {implementation.where}" if implementation.where else ""
    if "/" not in implementation.who or not found:
        return (f"[{implementation.who}]({found[0]})" if found else implementation.who) + where
    path, names, rest = code(implementation.where)
    titles = [f"{path}, {names[0]}", *names[1:]] if names else [path]
    links = (f"[{title}]({address})" for title, address in zip(titles, found, strict=True))
    return f"{implementation.who}, {' and '.join(links)}{rest}"


def link_papers(markdown: str) -> str:
    """Turns each arXiv number into a link, except in code, in links and in lines of HTML."""
    return _LINKABLE.sub(lambda match: f"[{match[0]}]({_of_paper(match[1])})" if match[1] else match[0], markdown)


def _of_paper(number: str) -> str:
    return f"https://arxiv.org/abs/{number}"


def of_package(package: str, version: str) -> str:
    """The address of the PyPI page of a package version. A build such as 2.13.0+cpu has the same page as 2.13.0."""
    return f"https://pypi.org/project/{package}/{version.partition('+')[0]}/"
