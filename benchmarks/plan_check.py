"""What `moespec plan` says of the memory of a training step, beside what the TPU's compiler says of it.

    pip install 'moespec[jax]' libtpu
    python benchmarks/plan_check.py [--check] [PART OF A NAME ...]

Each case is a model, a mesh and a topology of TPUs, without having them; a device has the images of `images`. The compiler's
arguments are parameters, what the optimiser keeps and the batch; its temporary memory is gradients and activations, and so are
what the plan has besides. `ratio` is the plan's sum over the compiler's: the plan is meant to be above 1 (LEAST) and near it.
`links` is the plan's bytes beside those of the compiled collectives: of these, what each returns, so that of an all-to-all the part
that stays is in it.

The figures are written to `benchmarks/results/plan.json`; `tests/training/planning/test_plan.py` holds the plan to them. With --check
nothing is written, and the exit status is 1 if a ratio is not within LEAST and MOST.
"""

import json
import sys
from typing import Any

import ahead  # isort: skip  # first: it sets which compiler is used
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
OF_IMAGENET = {"image_size": 224, "classes": 1000, "dtype": "bfloat16"}
S16 = {"name": "vit_s16", "depth": 4, "moe": "none", **OF_IMAGENET}
S16_8 = {**S16, "moe": "last_2", "experts": 8, "router": "softmax_token_choice"}
B16_32 = {**S16_8, "name": "vit_b16", "experts": 32}
SPARSE = {"name": "sparse_mlp_b", "depth": 4, "group_size": 384, "group_images": 1}
RECOMPUTED = {"training": {"recompute": True}}


def case(topology: str, images: int, model: dict[str, Any], mesh: dict[str, int], **more: Any) -> dict[str, Any]:
    """A case as it stands in the file; `images` are those of a device."""
    return {"topology": topology, "mesh": mesh, "images": images, "model": model, **more}


CASES: dict[str, dict[str, Any]] = {
    "v5e, S/16": case("v5e:2x2", 32, S16, {"data": 4}),
    "v5e, S/16 of 12 blocks": case("v5e:2x2", 32, {**S16, "depth": 12}, {"data": 4}),
    "v5e, S/16, 64 images": case("v5e:2x2", 64, S16, {"data": 4}),
    "v5e, S/32": case("v5e:2x2", 32, {**S16, "name": "vit_s32"}, {"data": 4}),
    "v5e, S/16 in float32": case("v5e:2x2", 32, {**S16, "dtype": "float32"}, {"data": 4}),
    "v5e, S/16, recomputed": case("v5e:2x2", 32, S16, {"data": 4}, **RECOMPUTED),
    "v5e, S/16 in two parts": case("v5e:2x2", 32, S16, {"data": 4}, training={"accumulate": 2}),
    "v5e, S/16, fsdp": case("v5e:2x2", 32, S16, {"fsdp": 4}),
    "v5e, S/16, 8 experts": case("v5e:2x2", 32, S16_8, {"data": 4}),
    "v5e, S/16, 8 experts split": case("v5e:2x2", 32, S16_8, {"data": 2, "expert": 2}),
    "v5e, S/16, 8 experts split, recomputed": case("v5e:2x2", 32, S16_8, {"data": 2, "expert": 2}, **RECOMPUTED),
    "v5e, S/16, 8 experts split and fsdp, Adafactor": case(
        "v5e:2x4", 32, S16_8, {"data": 2, "fsdp": 2, "expert": 2}, optimizer={"name": "adafactor"}
    ),
    "v5e, S/16, expert choice": case(
        "v5e:2x4", 32, {**S16_8, "router": "softmax_expert_choice"}, {"data": 2, "expert": 4}
    ),
    "v5e, S/16, hash, with room for all": case("v5e:2x2", 32, {**S16_8, "router": "hash"}, {"expert": 4}),
    "v5e, S/16, Soft MoE": case("v5e:2x4", 32, {**S16_8, "router": "soft_moe"}, {"data": 2, "expert": 4}),
    "v5e, Mixer B/16": case("v5e:2x2", 16, {"name": "mixer_b16", "depth": 4, **OF_IMAGENET}, {"data": 4}),
    "v5e, Sparse-MLP B": case("v5e:2x2", 16, {**SPARSE, **OF_IMAGENET}, {"data": 4}),
    "v6e, S/16": case("v6e:2x4", 32, S16, {"data": 8}),
    "v6e of 64, B/16, Soft MoE of 32 experts, recomputed": case(
        "v6e:8x8", 16, {**B16_32, "router": "soft_moe"}, {"data": 8, "expert": 8}, **RECOMPUTED
    ),
    "v5p of 64, B/16, 32 experts": case("v5p:4x4x4", 16, B16_32, {"data": 4, "expert": 16}),
    "v5p of 64, B/16, 32 experts and fsdp": case("v5p:4x4x4", 16, B16_32, {"fsdp": 4, "expert": 16}),
}


def main() -> int:
    parser = record.parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="PART", help="only cases with one of these parts in their names")
    parser.add_argument("--planned", action="store_true", help="compile nothing: beside what the compiler said before")
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    options = parser.parse_args()
    chosen = [name for name in CASES if not options.names or any(part in name for part in options.names)]
    rows = dict(dict(ahead.recorded("plan", "figures"))["cases"])
    outside = []
    for name in chosen:
        said = rows[name]["compiler"] if options.planned else compiler_says(CASES[name])
        row = {"case": CASES[name], **compared(CASES[name], said)}
        print(name, json.dumps({key: value for key, value in row.items() if key != "case"}), flush=True)
        if not LEAST <= row["ratio"] <= MOST:
            outside.append(f"{name}: {row['ratio']} is not within {LEAST} and {MOST}")
        rows[name] = row
        if not options.check:
            record.write("plan", {"cases": {name: rows[name] for name in CASES if name in rows}}, of_device=False)
    print("\n".join(outside) or f"all within {LEAST} and {MOST}")
    return int(bool(outside))


def configured(case: dict[str, Any]) -> tuple[Config, MeshSizes]:
    """The configuration and the mesh of a case."""
    sizes = MeshSizes(**case["mesh"])
    optimizer = OptimizerConfig(**{"clip": 1.0, "weight_decay": 0.1, **case.get("optimizer", {})})
    training = TrainingConfig(batch=case["images"] * sizes.devices, **case.get("training", {}))
    return Config(model=ModelConfig(**case["model"]), optimizer=optimizer, training=training), sizes


def compiler_says(case: dict[str, Any]) -> dict[str, Any]:
    """Bytes of the compiled step of a case."""
    config, sizes = configured(case)
    training, mesh = config.training, OnMesh(sizes, ahead.devices(case["topology"]))
    program, _ = ahead.compiled(
        ahead.lowered_step(model_config(config.model), config.optimizer, training.batch, mesh, config=config)
    )
    memory = program.memory_analysis()
    moved: dict[str, int] = {}
    for kind, size in tpu_mesh.collectives(program.as_text()):
        moved[kind] = moved.get(kind, 0) + size
    return {
        "arguments": memory.argument_size_in_bytes,
        "temporary": memory.temp_size_in_bytes,
        "peak": memory.peak_memory_in_bytes,
        "collectives": moved,
    }


def compared(case: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    """What the plan says of a case, beside what the compiler said."""
    config, sizes = configured(case)
    planned = plan(config, sizes, CHIPS[case["topology"].partition(":")[0]])
    return {
        "compiler": said,
        "plan": {"memory": planned.memory, "links": planned.links, "bytes": planned.bytes},
        "ratio": round(planned.bytes / (said["arguments"] + said["temporary"]), 3),
    }


if __name__ == "__main__":
    sys.exit(main())
