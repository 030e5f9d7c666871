"""Convert docstrings to Markdown: prose unchanged, sections as lists, examples as code."""

import re
import textwrap
from collections.abc import Iterator

from moespec.spec.ledger import PITFALLS

SECTION = re.compile(r"^(Args|Returns|Raises|Source|Sources|Checked):[ \n]", re.MULTILINE)
ENTRY = re.compile(r"^(?P<name>[\w, *]+): ", re.MULTILINE)
HEADINGS = {"Args": "Arguments", "Returns": "Returns", "Raises": "Raises", "Source": "Source", "Sources": "Sources"}


def introduction(docstring: str) -> str:
    """A module's docstring as Markdown, without its first line (the title) and its ledger."""
    _, _, body = docstring.partition("\n")
    return markdown(re.split(rf"^(?:Ambiguity ledger|{PITFALLS})$", body, maxsplit=1, flags=re.MULTILINE)[0])


def markdown(docstring: str) -> str:
    """A docstring as Markdown."""
    return "\n\n".join(_parts(textwrap.dedent(docstring).strip())).strip() + "\n"


def axes_of(docstring: str) -> dict[str, tuple[str, ...]]:
    """The axes of each argument in a docstring, written as `scores: (tokens, experts), ...` or "`kernel` (width, experts)"."""
    pairs = re.findall(r"^ +(\w+): (?:[^.(]*, )?\(([a-z, ]+)\)", docstring, re.MULTILINE)
    pairs += re.findall(r"`(\w+)` \(([^`]*?)\)(?=[ ,;:.]|$)", docstring)
    return {name: tuple(axis.strip() for axis in axes.split(",") if axis.strip()) for name, axes in pairs}


def _parts(text: str) -> Iterator[str]:
    """Yield the blocks of a docstring: prose, formulas, sections, examples."""
    for block in re.split(r"\n\s*\n", text):
        section = SECTION.match(block + "\n")
        if block.lstrip().startswith(">>>"):
            yield f"```pycon\n{textwrap.dedent(block)}\n```"
        elif section and section[1] == "Checked":
            yield block
        elif section:
            body = textwrap.dedent(block[section.end() :].rstrip("\n"))
            yield f"**{HEADINGS[section[1]]}**\n\n{_listed(body)}"
        elif block.startswith("    "):
            yield f"```text\n{textwrap.dedent(block)}\n```"
        else:
            yield block


def _listed(body: str) -> str:
    """A section's entries as a Markdown list. A section without entries is unchanged."""
    if not ENTRY.match(body):
        return body
    items: list[str] = []
    for line in body.splitlines():
        entry = ENTRY.match(line)
        if entry and not line.startswith(" "):
            names = ", ".join(f"`{name.strip()}`" for name in entry["name"].split(","))
            items.append(f"{names}: {line[entry.end() :]}")
        else:
            items[-1] += f" {line.strip()}"
    return "\n".join(f"* {item}" for item in items)
