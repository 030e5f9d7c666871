"""Train the tiny ViT on the digits once with each router; write accuracies and step times, and the README's table.

    python benchmarks/routers.py --backend jax      # one backend: trains, writes benchmarks/results/routers-jax-*.json
    python benchmarks/routers.py --table            # reads the result files and rewrites the table in README.md

Every run is the default recipe (`moespec train`) with another router, dense for comparison. A step time is the batch
size over the median of the images per second that the run logged, so compilation and evaluation are not in it.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import record

from moespec.models import cli, configfile
from moespec.models.runlog import read_log
from moespec.spec.routers import ROUTERS

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- routers table: python benchmarks/routers.py --table -->", "<!-- end of the routers table -->"
DENSE = "dense"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("jax", "torch"), help="train with this backend")
    parser.add_argument("--steps", type=int, default=None, help="training steps (default: the recipe's)")
    parser.add_argument("--table", action="store_true", help="rewrite the table in README.md from the result files")
    options = parser.parse_args()
    if not options.backend and not options.table:
        parser.error("one of --backend and --table is needed")
    if options.backend:
        print(record.write(f"routers-{options.backend}", measure(options.backend, options.steps)))
    if options.table:
        write_table()


def measure(backend: str, steps: int | None) -> dict[str, Any]:
    figures = {}
    for router in (DENSE, *ROUTERS):
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            choice = ["--model.moe", "none"] if router == DENSE else ["--router", router]
            length = [] if steps is None else ["--training.steps", str(steps)]
            command = ["train", "--backend", backend, "--run", str(run), *choice, *length]
            print("moespec", *command[:3], *choice, *length, flush=True)
            if cli.main(command):
                raise SystemExit(f"moespec {' '.join(command)} failed")
            figures[router] = summary(run)
    return figures


def summary(run: Path) -> dict[str, Any]:
    trained, evaluations = read_log(run, "train"), read_log(run, "evaluation")
    last = evaluations[-1]
    blocks = list(last.get("moe", {}).values())
    rate = statistics.median(line["images_per_second"] for line in trained)
    batch = configfile.read(run / "config.toml").training.batch
    return {
        "steps": last["step"],
        "seconds": last["seconds"],
        "validation_accuracy": last["accuracy"],
        "step_milliseconds": 1e3 * batch / rate,
        "dropped": statistics.mean(block["dropped"] for block in blocks) if blocks else 0.0,
        "load_imbalance": statistics.mean(max(b["load"]) * len(b["load"]) / sum(b["load"]) for b in blocks)
        if blocks
        else 1.0,
    }


def write_table() -> None:
    results = {
        backend: json.loads(path.read_text())
        for backend in ("jax", "torch")
        if (path := record.RESULTS / f"routers-{backend}-{record.device_slug()}.json").is_file()
    }
    columns = "".join(f" accuracy, {b} | ms/step, {b} (x dense) |" for b in results)
    lines = [f"| router |{columns} tokens dropped | max/mean load |", "|---" * (2 * len(results) + 3) + "|"]
    for router in (DENSE, *ROUTERS):
        cells = []
        for result in results.values():
            entry, dense = result["figures"][router], result["figures"][DENSE]
            ratio = entry["step_milliseconds"] / dense["step_milliseconds"]
            cells += [f"{100 * entry['validation_accuracy']:.1f} %", f"{entry['step_milliseconds']:.1f} ({ratio:.2f})"]
        first = next(iter(results.values()))["figures"][router]
        cells += (
            ["-", "-"] if router == DENSE else [f"{100 * first['dropped']:.1f} %", f"{first['load_imbalance']:.2f}"]
        )
        lines.append("| " + " | ".join([f"`{router}`" if router != DENSE else router, *cells]) + " |")
    text = README.read_text()
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    README.write_text(f"{text[:start]}\n" + "\n".join(lines) + f"\n{text[end:]}")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
