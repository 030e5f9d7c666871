"""Tables of pages in docs/, each between two marks, `<!-- NAME: made by benchmarks/SCRIPT -->` and `<!-- end of NAME -->`.

python benchmarks/table.py            # rewrites that of docs/evaluation.md: what `moespec study --out benchmarks/study` found
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moespec.training.study.results import rows

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


def of_study(results: dict[str, Any]) -> str:
    """The table as markdown, a row for each entry, the best first, and what can be told apart."""
    (_, *head), *body = rows(results)
    lines = table(["entry", *head], [[f"`{name}`", *cells] for name, *cells in body])
    first = next(iter(next(iter(results["runs"].values())).values()))
    note = (
        f"Mean and standard deviation (in points) over {len(results['seeds'])} seeds, on {results['images']} validation "
        f"images, after {first['step']} steps. Operations and times are of one image, times from the least to the most over seeds; "
        "training: of the whole run. Dropped: the fraction of the "
        "tokens without an expert. Imbalance: the load of the busiest expert over the mean. Both are of the validation "
        f"images, where BASE and S-BASE do not balance. Backend {first['backend']}."
    )
    return "\n".join([lines, "", note, "", *results["sentences"]])


if __name__ == "__main__":
    found = json.loads((Path(__file__).parent / "study" / "results.json").read_text())
    rewrite(DOCS / "evaluation.md", {"routers": of_study(found)})
