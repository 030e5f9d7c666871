"""Compare the memory of a training step that `moespec plan` predicts with the memory that the TPU compiler reports.

    pip install 'moespec[jax]' libtpu
    python benchmarks/plan_check.py [PART OF A NAME ...]

Each `case` in `benchmarks/results/plan.json` names a model, a mesh, a TPU topology and the number of `images` per device. No TPU is needed.
To compile another step, add a `case` to this file. The compiler reports the memory of the arguments (parameters, optimiser state and batch)
and temporary memory (mostly gradients and activations). `ratio` is the total memory that the plan predicts, divided by the total that the
compiler reports. `links` contains the predicted communication in bytes. `collectives` contains the bytes of the collectives in
the compiled step.

`tests/training/planning/test_plan.py` checks the plan against this file. The exit status is 1 if a ratio is below LEAST or above MOST.
"""

import json
import sys
from collections import Counter
from typing import Any

import ahead  # isort: skip  # this import comes first, because it selects the compiler
import record
import tpu_mesh

from moespec.backends.jax.mesh import OnMesh
from moespec.backends.mesh import MeshSizes
from moespec.backends.optimizer import OptimizerConfig
from moespec.training.configuration.config import Config, ModelConfig, TrainingConfig
from moespec.training.loop.resolve import model_config
from moespec.training.planning.chips import CHIPS
from moespec.training.planning.plan import plan

LEAST, MOST = 0.98, 1.35


def main() -> int:
    parser = record.parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="PART", help="only cases with one of these parts in their names")
    parser.add_argument("--planned", action="store_true", help="compile nothing: beside what the compiler said before")
    options = parser.parse_args()
    rows = dict(ahead.recorded("plan", "figures")["cases"])
    outside = []
    for name, row in rows.items():
        if options.names and not any(part in name for part in options.names):
            continue
        row |= compared(row["case"], row["compiler"] if options.planned else compiler_says(row["case"]))
        print(name, json.dumps({key: value for key, value in row.items() if key != "case"}), flush=True)
        if not LEAST <= row["ratio"] <= MOST:
            outside.append(f"{name}: {row['ratio']} is not within {LEAST} and {MOST}")
        record.write("plan", {"cases": rows}, of_device=False)
    print("\n".join(outside) or f"all within {LEAST} and {MOST}")
    return int(bool(outside))


def configured(case: dict[str, Any]) -> tuple[Config, MeshSizes]:
    """Return the configuration and the mesh of a case."""
    sizes = MeshSizes(**case["mesh"])
    optimizer = OptimizerConfig(**{"clip": 1.0, "weight_decay": 0.1, **case.get("optimizer", {})})
    training = TrainingConfig(batch=case["images"] * sizes.devices, **case.get("training", {}))
    return Config(model=ModelConfig(**case["model"]), optimizer=optimizer, training=training), sizes


def compiler_says(case: dict[str, Any]) -> dict[str, Any]:
    """Compile the step of a case, and return its memory and its communication in bytes."""
    config, sizes = configured(case)
    training, mesh = config.training, OnMesh(sizes, ahead.devices(case["topology"]))
    program, _ = ahead.compiled(
        ahead.lowered_step(model_config(config.model), config.optimizer, training.batch, mesh, config=config)
    )
    memory = program.memory_analysis()
    moved: Counter[str] = Counter()
    for kind, size in tpu_mesh.collectives(program.as_text()):
        moved[kind] += size
    return {
        "arguments": memory.argument_size_in_bytes,
        "temporary": memory.temp_size_in_bytes,
        "peak": memory.peak_memory_in_bytes,
        "collectives": moved,
    }


def compared(case: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    """Return the predictions of the plan for a case, together with the report of the compiler (`said`)."""
    config, sizes = configured(case)
    planned = plan(config, sizes, CHIPS[case["topology"].partition(":")[0]])
    return {
        "compiler": said,
        "plan": {"memory": planned.memory, "links": planned.links, "bytes": planned.bytes},
        "ratio": round(planned.bytes / (said["arguments"] + said["temporary"]), 3),
    }


if __name__ == "__main__":
    sys.exit(main())
