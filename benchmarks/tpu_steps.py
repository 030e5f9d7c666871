"""Compile training steps of one ViT, dense and with experts, ahead of time, without a TPU.

    pip install 'moespec[jax]' libtpu
    python benchmarks/tpu_steps.py [--model vit_s16] [--images 32] [--experts 8] [CASE ...]

Whole steps in bfloat16 with AdamW and a clip, 224 pixels, experts in every second block. A row has FLOPs beside three times the
count of a forward pass (`moespec count`), bytes and memory beside those of the dense step, and the seconds to compile. The
compiler counts one turn of a loop, so that FLOPs and bytes of a router whose experts have room for all are too low. With more
experts than 8, the optimiser's work is a part of FLOPs and bytes that the count leaves out.
"""

import argparse
import importlib.metadata
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import tpu_recipes  # isort: skip  # first: it sets which compiler is used
import jax
from jax.experimental import topologies

import moespec.backends.jax as B
from moespec.models import memory, vit
from moespec.models.training.objective import make_loss

RESULT = Path(__file__).parent / "results" / "steps-tpu.json"
CASES: dict[str, tuple[str | None, dict[str, Any], bool]] = {
    "dense": (None, {}, False),
    "dense, recomputed": (None, {}, True),
    "softmax_token_choice": ("softmax_token_choice", {}, False),
    "softmax_token_choice, recomputed": ("softmax_token_choice", {}, True),
    "softmax_token_choice, k = 2": ("softmax_token_choice", {"choices": 2}, False),
    "softmax_expert_choice": ("softmax_expert_choice", {}, False),
    "sinkhorn_token_choice": ("sinkhorn_token_choice", {}, False),
    "soft_moe": ("soft_moe", {}, False),
    "hash": ("hash", {}, False),
    "noisy_top_k": ("noisy_top_k", {}, False),
}
"""Name -> router, its options, and whether blocks are recomputed."""


def model_of(case: str, name: str, experts: int) -> vit.VitConfig:
    """The model of a case."""
    router, settings, _ = CASES[case]
    moe = {"moe": "every_2", "experts": experts, "router": router} if router else {}
    return vit.named(name, dtype="bfloat16", router_options=settings, **moe)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[[], *CASES], metavar="CASE", help=f"of: {'; '.join(CASES)}")
    parser.add_argument("--model", default="vit_s16", help="a ViT (default: %(default)s)")
    parser.add_argument("--images", type=int, default=32, help="images in the batch (default: %(default)s)")
    parser.add_argument("--experts", type=int, default=8, help="experts of a layer (default: %(default)s)")
    parser.add_argument("--topology", default="v5e:2x2", help="name of the TPU topology (default: %(default)s)")
    arguments = parser.parse_args()
    memory.of_machine = lambda: float("inf")  # nothing is allocated
    topology = topologies.get_topology_desc(arguments.topology, platform="tpu")
    device = jax.sharding.SingleDeviceSharding(topology.devices[0])
    rows: dict[str, dict[str, Any]] = {}
    if RESULT.is_file():
        rows = {json.dumps(row["of"]): row for row in json.loads(RESULT.read_text())["rows"]}
    for case in arguments.cases or CASES:
        router, _, recompute = CASES[case]
        model = model_of(case, arguments.model, arguments.experts)
        of = {"model": arguments.model, "images": arguments.images, "topology": arguments.topology, "case": case}
        of |= {"experts": arguments.experts} if router else {}
        loss = partial(make_loss, B, kind="softmax", recompute=recompute)
        optimizer = B.OptimizerConfig("adamw", clip=1.0)
        rows[json.dumps(of)] = {"of": of, **tpu_recipes.compile_step(model, loss, optimizer, arguments.images, device)}
        print(json.dumps(rows[json.dumps(of)]), flush=True)
        report = {
            "command": "python benchmarks/tpu_steps.py",
            "optimization_level": os.environ["JAX_OPTIMIZATION_LEVEL"],
            "versions": {name: importlib.metadata.version(name) for name in ("jax", "libtpu")},
            "rows": list(rows.values()),
        }
        RESULT.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
