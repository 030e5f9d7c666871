"""Train the tiny ViT on the digits once with each router, and write accuracies, step times, drops and loads.

    python benchmarks/routers.py --backend jax      # trains and writes benchmarks/results/routers-jax-*.json

Every run is the default recipe (`moespec train`) with another router or model, dense for comparison, and with fewer
steps. A step time is the batch size over the median of the images per second that the run logged, so compilation and
evaluation are not in it. `dropped` is the share of the tokens without an expert, `load_imbalance` the load of the busiest
expert over the mean, both of the validation images and in the mean of the MoE layers.
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import record

from moespec.models import cli
from moespec.models.training import configfile
from moespec.models.training.runlog import read_log
from moespec.spec.routers import ROUTERS

RUNS: dict[str, tuple[str, ...]] = {
    "dense": ("--model.moe", "none"),
    **{router: ("--router", router) for router in ROUTERS},
    "base": ("--router", "base", "--model.group-images", "64"),  # which balances the whole batch
    "MultiHash": ("--router", "hash", "--model.router-options.hashes", "2"),
    "mixer_tiny": ("--model", "mixer_tiny"),
    "sparse_mlp_tiny": ("--model", "sparse_mlp_tiny"),
}
"""The rows of the table and how they differ from the recipe."""
STEPS = 600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("jax", "torch"), required=True, help="train with this backend")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"training steps (default: {STEPS})")
    options = parser.parse_args()
    print(record.write(f"routers-{options.backend}", measure(options.backend, options.steps)))


def measure(backend: str, steps: int) -> dict[str, Any]:
    figures = {}
    for name, choice in RUNS.items():
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            command = ["train", "--backend", backend, *choice, "--training.steps", str(steps), "--run", str(run)]
            print("moespec", *command[:-2], flush=True)
            if cli.main(command):
                raise SystemExit(f"moespec {' '.join(command)} failed")
            figures[name] = summary(run)
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
