"""Train the tiny ViT on the digits once with each router, and write accuracies and step times.

    python benchmarks/routers.py --backend jax      # trains and writes benchmarks/results/routers-jax-*.json

Every run is the default recipe (`moespec train`) with another router, dense for comparison. A step time is the batch
size over the median of the images per second that the run logged, so compilation and evaluation are not in it.
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import record

from moespec.models import cli, configfile
from moespec.models.runlog import read_log
from moespec.spec.routers import ROUTERS

DENSE = "dense"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("jax", "torch"), required=True, help="train with this backend")
    parser.add_argument("--steps", type=int, default=None, help="training steps (default: the recipe's)")
    options = parser.parse_args()
    print(record.write(f"routers-{options.backend}", measure(options.backend, options.steps)))


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


if __name__ == "__main__":
    main()
