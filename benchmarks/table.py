"""Put the table of routers into the README, from the result files of `benchmarks/routers.py`.

    python benchmarks/table.py            # rewrites what stands between the two marks in README.md
    python benchmarks/table.py --check    # only says whether it would change anything

The files are those of `benchmarks/results/` for one device, the CPU unless `--device` names another.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

README = Path(__file__).parents[1] / "README.md"
RESULTS = Path(__file__).parent / "results"
BEGIN, END = "<!-- routers: made by benchmarks/table.py -->", "<!-- end of routers -->"
BACKENDS = {"jax": "JAX", "torch": "torch"}

COLUMNS: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("accuracy", lambda figures: f"{100 * figures['validation_accuracy']:.1f} %"),
    ("ms a step", lambda figures: f"{figures['step_milliseconds']:.1f}"),
    ("dropped", lambda figures: f"{100 * figures['dropped']:.1f} %"),
    ("imbalance", lambda figures: f"{figures['load_imbalance']:.2f}"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the table is out of date")
    parser.add_argument("--device", default="cpu", help="the last part of the files' names (default: cpu)")
    options = parser.parse_args()
    text = README.read_text()
    new = replaced(text, table(options.device))
    if options.check:
        raise SystemExit("README.md: the table of routers is out of date" if new != text else 0)
    README.write_text(new)


def replaced(text: str, content: str) -> str:
    """`text` with `content` between the marks. Raises SystemExit if they are not there."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise SystemExit(f"{README.name}: expected {BEGIN!r} and {END!r} once each")
    return f"{text[: text.index(BEGIN)]}{BEGIN}\n{content}\n{text[text.index(END) :]}"


def table(device: str) -> str:
    """The table as markdown, a row for each router, and what it was measured on."""
    found = {backend: _read(RESULTS / f"routers-{backend}-{device}.json") for backend in BACKENDS}
    head = ["router", *(f"{what}, {title}" for what, _ in COLUMNS for title in BACKENDS.values())]
    rows = [head, ["---", *["---:"] * (len(head) - 1)]]
    for name in found["jax"]["figures"]:
        figures = [found[backend]["figures"][name] for backend in BACKENDS]
        rows.append([_title(name), *(text(f) for _, text in COLUMNS for f in figures)])
    first = found["jax"]
    steps = first["figures"]["dense"]["steps"]
    versions = ", ".join(
        f"{name} {found[backend]['versions'][name]}" for backend, name in zip(BACKENDS, BACKENDS, strict=True)
    )
    where = first["machine"]["gpu"] or f"{first['machine']['cores']} cores of a CPU, no GPU"
    note = (
        f"On the digits, after {steps} steps of one seed. Dropped: the fraction of the tokens without an expert. Imbalance: "
        f"the load of the busiest expert over the mean. Both are of the validation images, where BASE and S-BASE do not "
        f"balance. A routing group is an image, of BASE 64. {where}; {versions}."
    )
    return "\n".join([*("| " + " | ".join(row) + " |" for row in rows), "", note])


def _title(name: str) -> str:
    """Names of routers and models are code, words are words."""
    words = {"dense": "dense (no MoE)", "MultiHash": "`hash`, two hashes"}
    return words.get(name, f"`{name}`")


def _read(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        backend = path.name.split("-")[1]
        raise SystemExit(f"{path}: no such file; make it with `nox -s \"benchmark(backend='{backend}')\"`") from None
    return content


if __name__ == "__main__":
    main()
