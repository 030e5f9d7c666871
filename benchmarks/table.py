"""Put the table of a study into docs/evaluation.md: what `moespec study --out benchmarks/study` found.

python benchmarks/table.py            # rewrites what stands between the two marks there
python benchmarks/table.py --check    # only says whether it would change anything
"""

import argparse
import json
from pathlib import Path
from typing import Any

from moespec.training.study.results import rows

PAGE = Path(__file__).parents[1] / "docs" / "evaluation.md"
RESULTS = Path(__file__).parent / "study" / "results.json"
BEGIN, END = "<!-- routers: made by benchmarks/table.py -->", "<!-- end of routers -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the table is out of date")
    options = parser.parse_args()
    if not RESULTS.is_file():
        raise SystemExit(f"{RESULTS}: no such file; make it with `nox -s study`")
    text = PAGE.read_text()
    new = replaced(text, table(json.loads(RESULTS.read_text())))
    if options.check:
        raise SystemExit("docs/evaluation.md: the table of routers is out of date" if new != text else 0)
    PAGE.write_text(new)


def replaced(text: str, content: str) -> str:
    """`text` with `content` between the marks. Raises SystemExit if they are not there."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise SystemExit(f"{PAGE.name}: expected {BEGIN!r} and {END!r} once each")
    return f"{text[: text.index(BEGIN)]}{BEGIN}\n{content}\n{text[text.index(END) :]}"


def table(results: dict[str, Any]) -> str:
    """The table as markdown, a row for each entry, the best first, and what can be told apart."""
    (_, *head), *body = rows(results)
    lines = [["entry", *head], ["---", *["---:"] * len(head)], *([f"`{name}`", *cells] for name, *cells in body)]
    first = next(iter(next(iter(results["runs"].values())).values()))
    note = (
        f"Mean and standard deviation (in points) over {len(results['seeds'])} seeds, on {results['images']} validation "
        f"images, after {first['step']} steps. Operations and times are of one image, times from the least to the most over seeds; "
        "training: of the whole run. Dropped: the fraction of the "
        "tokens without an expert. Imbalance: the load of the busiest expert over the mean. Both are of the validation "
        f"images, where BASE and S-BASE do not balance. Backend {first['backend']}."
    )
    return "\n".join(["| " + " | ".join(line) + " |" for line in lines] + ["", note, "", *results["sentences"]])


if __name__ == "__main__":
    main()
