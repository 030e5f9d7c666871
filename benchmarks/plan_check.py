"""Compare the training-step memory that `moespec plan` predicts with the TPU compiler's figure.

    pip install 'moespec[jax]' libtpu
    python benchmarks/plan_check.py [PART OF A NAME ...]

Each `case` of the file, `benchmarks/results/plan.json`, names a model, a mesh, a TPU topology (no TPU is needed) and the images per device,
`images`. To compile another step, add its `case` there. The compiler's arguments are parameters, optimiser state and the batch; its
temporary memory and the plan's remaining entries are gradients and activations. `ratio` is the plan's total divided by the compiler's and
should be slightly above 1 (LEAST to MOST). `links` compares the plan's bytes with the bytes that the compiled collectives return. An
all-to-all also returns the part that stays on the device, and that part is counted.

`tests/training/planning/test_plan.py` checks the plan against these figures. The exit status is 1 if a ratio is outside LEAST to MOST.
"""

import json
import sys
from collections import Counter
from typing import Any

import ahead  # isort: skip  # first: it selects the compiler
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
    """The configuration and the mesh of a case."""
    sizes = MeshSizes(**case["mesh"])
    optimizer = OptimizerConfig(**{"clip": 1.0, "weight_decay": 0.1, **case.get("optimizer", {})})
    training = TrainingConfig(batch=case["images"] * sizes.devices, **case.get("training", {}))
    return Config(model=ModelConfig(**case["model"]), optimizer=optimizer, training=training), sizes


def compiler_says(case: dict[str, Any]) -> dict[str, Any]:
    """Memory in bytes of a case's compiled step."""
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
    """The plan's figures for a case next to the compiler's."""
    config, sizes = configured(case)
    planned = plan(config, sizes, CHIPS[case["topology"].partition(":")[0]])
    return {
        "compiler": said,
        "plan": {"memory": planned.memory, "links": planned.links, "bytes": planned.bytes},
        "ratio": round(planned.bytes / (said["arguments"] + said["temporary"]), 3),
    }


if __name__ == "__main__":
    sys.exit(main())
