"""Write the results of `moespec study --out benchmarks/study` as a table into docs/evaluation.md.

python benchmarks/table.py            # rewrites the text between the page's markers
"""

import json
from pathlib import Path
from typing import Any

import page

from moespec.training.study.results import rows

RESULTS = Path(__file__).parent / "study" / "results.json"


def main() -> None:
    if not RESULTS.is_file():
        raise SystemExit(f"{RESULTS}: no such file; make it with `nox -s study`")
    page.rewrite(page.DOCS / "evaluation.md", {"routers": table(json.loads(RESULTS.read_text()))})


def table(results: dict[str, Any]) -> str:
    """Return a Markdown table with one row per entry (best first), and sentences about significant differences."""
    (_, *head), *body = rows(results)
    lines = page.table(["entry", *head], [[f"`{name}`", *cells] for name, *cells in body])
    first = next(iter(next(iter(results["runs"].values())).values()))
    note = (
        f"Accuracy and spread are the mean and the standard deviation (in points) over {len(results['seeds'])} seeds, on "
        f"{results['images']} validation images, after {first['step']} steps. Operations and times are per image, except that the "
        "column training counts the whole run. Times range from the least to the most over seeds. Dropped is the fraction of "
        "tokens without an expert, and imbalance is the load of the busiest expert divided by the mean load. Both are measured on "
        f"the validation images, where BASE and S-BASE do not balance. The backend is {first['backend']}."
    )
    return "\n".join([lines, "", note, "", *results["sentences"]])


if __name__ == "__main__":
    main()
