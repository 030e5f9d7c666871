"""Count the collectives of a training step on several TPUs, and the bytes that the TPUs exchange. The script reads the
program that the TPU compiler produces. No TPU is needed.

    pip install 'moespec[jax]' libtpu
    python benchmarks/tpu_mesh.py [--check] [ROUTER ...]

docs/speed.md describes the model and the bytes that a device must receive (`bound`). docs/devices.md lists the required collectives.
The results are the number of collectives per step and the bytes that each device receives. The bytes of an all-reduce are counted twice.

Without arguments, the script writes the results to `benchmarks/results/mesh-tpu.json`. With --check, the script compares the results with
this file. The check fails if a number of collectives differs, or if the bytes of a collective exceed 1.02 times the bytes in the file.
"""

import json
import math
import re
import sys
from typing import Any

import ahead  # isort: skip  # this import comes first, because it selects the compiler
import record

from moespec.backends.jax.mesh import OnMesh
from moespec.backends.mesh import MeshSizes, leaves, split_axes
from moespec.backends.optimizer import OptimizerConfig
from moespec.models import vit

ROUTERS = (
    *("softmax_token_choice", "sinkhorn_token_choice", "softmax_expert_choice", "sinkhorn_expert_choice"),
    *("sparsity_constrained_expert_choice", "soft_moe"),
)
MESHES = {
    "v5e:2x2": (MeshSizes(4), MeshSizes(2, 1, 2), MeshSizes(1, 1, 4), MeshSizes(1, 2, 2)),
    "v5e:2x4": (MeshSizes(8), MeshSizes(2, 1, 4), MeshSizes(1, 1, 8), MeshSizes(2, 2, 2)),
}
ALL_MESHES = "softmax_token_choice"
"""The router compiled for all meshes. Other routers are compiled only for the mesh that splits data and experts."""
IMAGES, BLOCKS = 16, 1
LIMIT = 1.02
KINDS = ("all-to-all", "all-reduce", "all-gather", "reduce-scatter", "collective-permute")
BYTES = {"bf16": 2, "f16": 2, "f32": 4, "s32": 4, "u32": 4, "pred": 1, "s8": 1, "u8": 1}


def main() -> None:
    parser = record.parser(__doc__)
    parser.add_argument("routers", nargs="*", default=[], metavar="ROUTER", help="only these (default: all)")
    parser.add_argument("--check", action="store_true", help="compare with the file, and write nothing")
    options = parser.parse_args()
    rows: dict[str, Any] = {}
    for topology, meshes in MESHES.items():
        devices = ahead.devices(topology)
        for router in options.routers or ROUTERS:
            for sizes in meshes if router == ALL_MESHES else meshes[1:2]:
                name = f"{router}, {sizes.devices} devices: {sizes}"
                rows[name] = compiled(router, sizes, devices)
                print(name, json.dumps(rows[name]), flush=True)
    if options.check:
        compare(rows, ahead.recorded("mesh-tpu", "steps"))
    elif not options.routers:
        ahead.write("mesh-tpu", {"steps": rows})


def compiled(router: str, sizes: MeshSizes, devices: Any) -> dict[str, Any]:
    """Compile a training step, and return the counts and megabytes of its collectives."""
    moe = {"router": router, "moe": "every_2", "experts": 8}
    config = vit.named("vit_s16", depth=2 * BLOCKS, dtype="bfloat16", **moe)
    optimizer = OptimizerConfig(clip=1.0, weight_decay=0.1)
    lowered = ahead.lowered_step(config, optimizer, IMAGES * sizes.devices, OnMesh(sizes, devices), random=False)
    program, _ = ahead.compiled(lowered)
    received = list(collectives(program.as_text()))
    row: dict[str, Any] = {}
    for kind in KINDS:
        if each := [size for name, size in received if name == kind]:
            row[kind] = {"count": len(each), "megabytes": round(sum(each) / 1e6, 3)}
    row["megabytes"], least = round(sum(size for _, size in received) / 1e6, 3), bound(config, sizes) / 1e6
    row |= {"bound_megabytes": round(least, 3), "over_bound": round(row["megabytes"] / least, 3)}
    row["temporary_mib"] = program.memory_analysis().temp_size_in_bytes >> 20
    return row


def collectives(text: str) -> Any:
    """Yield the kind of each collective in a compiled program, with the bytes that a device receives."""
    for line in text.splitlines():
        match = re.search(rf" ({'|'.join(KINDS)})(-start)?\(", line)
        if not match:
            continue
        shapes = re.findall(r"\b([a-z]+\d+|pred)\[([\d,]*)\]", line[: match.start()].split("=", 1)[1])
        size = sum(BYTES[kind] * math.prod(map(int, filter(None, shape.split(",")))) for kind, shape in shapes)
        listed = re.search(r"replica_groups=\{\{([\d,]+)\}", line)
        counted = re.search(r"replica_groups=\[\d+,(\d+)\]", line)
        together = len(listed[1].split(",")) if listed else int(counted[1]) if counted else 2
        # `size` is the size of the result: the complete array, or one shard for a reduce-scatter.
        received = {"all-reduce": 2 * (together - 1) / together, "reduce-scatter": together - 1.0}
        yield match[1], size * received.get(match[1], (together - 1) / together)


def bound(config: vit.VitConfig, sizes: MeshSizes) -> float:
    """Return the bytes that a device must receive in a step: slots of remote experts, gradients and sharded parameters."""
    slots: Any = vit.router_config(config)
    per_image = config.experts * slots.capacity(train=True) * config.width * 2
    total = 4 * BLOCKS * IMAGES * per_image * (1 - 1 / sizes.expert)
    for path, shape in leaves(vit.parameter_shapes(config)):
        split = split_axes(path, shape, sizes)
        own = math.prod(shape) / sizes.size([axis for axis in split if axis])
        others = sizes.size([axis for axis in ("data", "fsdp", "expert") if axis not in split])
        total += 2 * 4 * own * (1 - 1 / others)
        if "fsdp" in split:
            total += 2 * 4 * own * (sizes.fsdp - 1)
    return total


def compare(rows: dict[str, Any], committed: dict[str, Any]) -> None:
    """Exit with status 1 if a count of collectives differs from `committed` or bytes exceed LIMIT times the committed bytes, else 0."""
    wrong = []
    for name, row in rows.items():
        before = committed[name]
        for kind in KINDS:
            now, then = (each.get(kind, {"count": 0, "megabytes": 0.0}) for each in (row, before))
            if now["count"] != then["count"] or now["megabytes"] > LIMIT * then["megabytes"]:
                wrong.append(f"{name}: {kind} {now}, was {then}")
    print("\n".join(wrong) or "as committed")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
