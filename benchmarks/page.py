"""Write tables into pages in docs/, between the markers `<!-- NAME: made by benchmarks/SCRIPT -->` and `<!-- end of NAME -->`."""

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table. All columns except the first are right-aligned."""
    align = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, align, *rows])


def rewrite(path: Path, tables: Mapping[str, str]) -> None:
    """Write each table between its markers on a page. Raise SystemExit unless each marker occurs exactly once."""
    text = path.read_text()
    for name, content in tables.items():
        begin, end = f"<!-- {name}: made by benchmarks/{Path(sys.argv[0]).name} -->", f"<!-- end of {name} -->"
        text, count = re.subn(rf"(?s)(?<={begin}\n).*?(?={end})", lambda _, new=content: f"{new}\n", text)  # type: ignore[misc]
        if count != 1:
            raise SystemExit(f"{path.name}: expected {begin!r} and {end!r} once")
    path.write_text(text)
