"""Tables of pages in docs/. Each stands between two marks, `<!-- NAME: made by benchmarks/SCRIPT -->` and `<!-- end of NAME -->`."""

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, whose columns are numbers but for the first."""
    align = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, align, *rows])


def rewrite(path: Path, tables: Mapping[str, str]) -> None:
    """Put tables between their marks on a page. Raises SystemExit if a mark is not there once."""
    text = path.read_text()
    for name, content in tables.items():
        begin, end = f"<!-- {name}: made by benchmarks/{Path(sys.argv[0]).name} -->", f"<!-- end of {name} -->"
        text, count = re.subn(rf"(?s)(?<={begin}\n).*?(?={end})", lambda _, new=content: f"{new}\n", text)  # type: ignore[misc]
        if count != 1:
            raise SystemExit(f"{path.name}: expected {begin!r} and {end!r} once")
    path.write_text(text)
