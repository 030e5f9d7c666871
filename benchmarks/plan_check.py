"""What `moespec plan` says of the memory of a training step, beside what the TPU's compiler says of it.

    pip install 'moespec[jax]' libtpu
    python benchmarks/plan_check.py [--check] [PART OF A NAME ...]

Each case is a model, a mesh and a topology of TPUs that need not be there; a device has the images of `images`. The compiler's
arguments are parameters, what the optimiser keeps and the batch; its temporary memory is gradients and activations, and so are
what the plan has besides. `ratio` is the plan's sum over the compiler's: the plan is meant to be above 1 (LEAST) and near it.
`links` is the plan's bytes beside those of the compiled collectives: of these, what each returns, so that of an all-to-all the part
that stays is in it.

The figures are written to `benchmarks/results/plan.json`; `tests/models/test_plan.py` holds the plan to them. With --check
nothing is written, and the exit status is 1 if a ratio is not within LEAST and MOST.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import tpu_mesh  # isort: skip  # first: it sets which compiler is used
import jax
import jax.numpy as jnp
import record
from jax.experimental import topologies

from moespec.backends.jax.mesh import OnMesh
from moespec.backends.mesh import MeshSizes
from moespec.backends.optimizer import OptimizerConfig
from moespec.models.families import family
from moespec.models.parameters import shaped
from moespec.models.planning.chips import chip_of
from moespec.models.planning.plan import plan
from moespec.models.training.config import Config, ModelConfig, TrainingConfig
from moespec.models.training.objective import draws, make_loss
from moespec.models.training.resolve import model_config

RESULT = Path(__file__).parent / "results" / "plan.json"
LEAST, MOST = 0.98, 1.35
S16 = {"name": "vit_s16", "depth": 4, "moe": "none", "image_size": 224, "classes": 1000, "dtype": "bfloat16"}
S16_8 = {**S16, "moe": "last_2", "experts": 8, "router": "softmax_token_choice"}
B16_32 = {**S16_8, "name": "vit_b16", "experts": 32}
CASES: dict[str, dict[str, Any]] = {
    "v5e, S/16": {"topology": "v5e:2x2", "mesh": {"data": 4}, "images": 32, "model": S16},
    "v5e, S/16 of 12 blocks": {"topology": "v5e:2x2", "mesh": {"data": 4}, "images": 32, "model": {**S16, "depth": 12}},
    "v5e, S/16, 64 images": {"topology": "v5e:2x2", "mesh": {"data": 4}, "images": 64, "model": S16},
    "v5e, S/32": {"topology": "v5e:2x2", "mesh": {"data": 4}, "images": 32, "model": {**S16, "name": "vit_s32"}},
    "v5e, S/16 in float32": {
        **{"topology": "v5e:2x2", "mesh": {"data": 4}, "images": 32},
        "model": {**S16, "dtype": "float32"},
    },
    "v5e, S/16, recomputed": {
        **{"topology": "v5e:2x2", "mesh": {"data": 4}, "images": 32, "model": S16},
        "training": {"recompute": True},
    },
    "v5e, S/16 in two parts": {
        **{"topology": "v5e:2x2", "mesh": {"data": 4}, "images": 32, "model": S16},
        "training": {"accumulate": 2},
    },
    "v5e, S/16, fsdp": {"topology": "v5e:2x2", "mesh": {"fsdp": 4}, "images": 32, "model": S16},
    "v5e, S/16, 8 experts": {"topology": "v5e:2x2", "mesh": {"data": 4}, "images": 32, "model": S16_8},
    "v5e, S/16, 8 experts split": {
        **{"topology": "v5e:2x2", "mesh": {"data": 2, "expert": 2}, "images": 32, "model": S16_8}
    },
    "v5e, S/16, 8 experts split, recomputed": {
        **{"topology": "v5e:2x2", "mesh": {"data": 2, "expert": 2}, "images": 32, "model": S16_8},
        "training": {"recompute": True},
    },
    "v5e, S/16, 8 experts split and fsdp, Adafactor": {
        **{"topology": "v5e:2x4", "mesh": {"data": 2, "fsdp": 2, "expert": 2}, "images": 32, "model": S16_8},
        "optimizer": {"name": "adafactor"},
    },
    "v5e, S/16, expert choice": {
        **{"topology": "v5e:2x4", "mesh": {"data": 2, "expert": 4}, "images": 32},
        "model": {**S16_8, "router": "softmax_expert_choice"},
    },
    "v5e, S/16, hash, with room for all": {
        **{"topology": "v5e:2x2", "mesh": {"expert": 4}, "images": 32},
        "model": {**S16_8, "router": "hash"},
    },
    "v5e, S/16, Soft MoE": {
        **{"topology": "v5e:2x4", "mesh": {"data": 2, "expert": 4}, "images": 32},
        "model": {**S16_8, "router": "soft_moe"},
    },
    "v5e, Mixer B/16": {
        **{"topology": "v5e:2x2", "mesh": {"data": 4}, "images": 16},
        "model": {"name": "mixer_b16", "depth": 4, "image_size": 224, "classes": 1000, "dtype": "bfloat16"},
    },
    "v5e, Sparse-MLP B": {
        **{"topology": "v5e:2x2", "mesh": {"data": 4}, "images": 16},
        "model": {
            "name": "sparse_mlp_b",
            "depth": 4,
            "group_size": 384,
            "group_images": 1,
            "image_size": 224,
            "classes": 1000,
            "dtype": "bfloat16",
        },
    },
    "v6e, S/16": {"topology": "v6e:2x4", "mesh": {"data": 8}, "images": 32, "model": S16},
    "v6e of 64, B/16, Soft MoE of 32 experts, recomputed": {
        **{"topology": "v6e:8x8", "mesh": {"data": 8, "expert": 8}, "images": 16},
        **{"model": {**B16_32, "router": "soft_moe"}, "training": {"recompute": True}},
    },
    "v5p of 64, B/16, 32 experts": {
        **{"topology": "v5p:4x4x4", "mesh": {"data": 4, "expert": 16}, "images": 16, "model": B16_32}
    },
    "v5p of 64, B/16, 32 experts and fsdp": {
        **{"topology": "v5p:4x4x4", "mesh": {"fsdp": 4, "expert": 16}, "images": 16, "model": B16_32}
    },
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", metavar="PART", help="only cases whose names have one of these parts in them"
    )
    parser.add_argument(
        "--planned", action="store_true", help="compile nothing: plan beside what the compiler said before"
    )
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    options = parser.parse_args()
    chosen = [name for name in CASES if not options.names or any(part in name for part in options.names)]
    rows = json.loads(RESULT.read_text())["figures"]["cases"] if RESULT.is_file() else {}
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
    program = compiled(*configured(case), topologies.get_topology_desc(case["topology"], platform="tpu").devices)
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
    planned = plan(config, sizes, chip_of(case["topology"].partition(":")[0]))
    return {
        "compiler": said,
        "plan": {"memory": planned.memory, "links": planned.links, "bytes": planned.bytes},
        "ratio": round(planned.bytes / (said["arguments"] + said["temporary"]), 3),
    }


def compiled(config: Config, sizes: MeshSizes, devices: Any) -> Any:
    """The compiled training step."""
    model = model_config(config.model)
    B = OnMesh(sizes, devices)
    state = B.state_shapes(shaped(family(model).parameter_shapes(model)), config.optimizer)
    count = config.training.batch
    arrays: dict[str, tuple[tuple[int, ...], Any]] = {
        "images": ((count, 224, 224, 3), jnp.float32),
        "targets": ((count, 1000), jnp.float32),
    }
    if draws(model, count):
        arrays["random"] = ((count, 4), jnp.int32)
    batch = {
        name: jax.ShapeDtypeStruct(*array, sharding=B.by_image)  # type: ignore[no-untyped-call]
        for name, array in arrays.items()
    }
    loss = make_loss(B, model, config.training.loss, recompute=config.training.recompute)
    step: Any = B.make_step(loss, config.optimizer, accumulate=config.training.accumulate)
    return step.__wrapped__.lower(state, batch, 1.0).compile()


if __name__ == "__main__":
    sys.exit(main())
