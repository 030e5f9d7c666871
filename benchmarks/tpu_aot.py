"""Compile a training step of one MoE layer for a TPU that need not be there, and compare its FLOPs with a hand count.

    pip install 'moespec[jax]' libtpu
    python benchmarks/tpu_aot.py [--output FILE]

For each router: bfloat16 layer, loss, backward pass, clip and AdamW, compiled by the TPU's own compiler. The count by
hand is three times the forward products of router, experts and (Soft MoE) mixing. Fails when a ratio is above 1.05:
then the compiler has made something dense that should be a gather.
"""

import argparse
import json
import os
import platform
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

for variable, value in {
    "JAX_PLATFORMS": "cpu",  # the compiler is asked for by name below
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_OPTIMIZATION_LEVEL": "O0",
}.items():
    os.environ.setdefault(variable, value)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.experimental import topologies  # noqa: E402

import moespec.backends.jax as B  # noqa: E402

GROUPS, TOKENS, WIDTH, HIDDEN, EXPERTS = 8, 784, 384, 1536, 8
CASES: list[tuple[str, dict[str, Any]]] = [
    ("softmax_token_choice", {"choices": 1}),
    ("softmax_token_choice", {"choices": 2, "batch_priority": "max"}),
    ("sinkhorn_token_choice", {"choices": 1}),
    ("softmax_expert_choice", {}),
    ("sinkhorn_expert_choice", {}),
    ("sparsity_constrained_expert_choice", {}),
    ("soft_moe", {"capacity_factor": 0.25}),
]
LIMIT = 1.05


def compile_step(name: str, options: dict[str, Any], device: Any) -> dict[str, Any]:
    """The figures of one compiled training step."""
    router = B.ROUTERS[name]
    config = router.options(width=WIDTH, experts=EXPERTS, tokens=TOKENS, **options)
    shapes = {"w1": (WIDTH, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, WIDTH), "b2": (WIDTH,)}
    params = {
        "scale": np.ones(WIDTH, np.float32),  # before the layer, so that its input needs a gradient
        "router": router.init(np.random.default_rng(0), config),
        "experts": {key: np.zeros((EXPERTS, *shape), np.float32) for key, shape in shapes.items()},
    }
    batch = {"x": jax.ShapeDtypeStruct((GROUPS, TOKENS, WIDTH), jnp.float32), "noise": None}
    if name != "soft_moe":
        batch["noise"] = jax.ShapeDtypeStruct((GROUPS, TOKENS, EXPERTS), jnp.float32)

    def loss_fn(params: Any, batch: Any) -> Any:
        x = B.cast(batch["x"] * params["scale"], "bfloat16")
        out = router.route(params["router"], x, config, noise=batch["noise"])
        y = B.cast(x + B.moe_layer(x, out.routing, partial(B.expert_mlp, params=params["experts"])), "float32")
        return B.mean(y * y, (0, 1, 2)) + sum(out.losses.values()), out.metrics

    optimizer = B.OptimizerConfig(weight_decay=0.1, clip=1.0)
    state = jax.eval_shape(partial(B.init_state, optimizer=optimizer), params)
    place = partial(jax.tree.map, lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device))
    start = time.perf_counter()
    step = B.make_step(loss_fn, optimizer).__wrapped__  # type: ignore[attr-defined]
    compiled = step.lower(place(state), place(batch), 0.1).compile()
    seconds = time.perf_counter() - start

    capacity = config.capacity(choices=config.choices if "token_choice" in name else 1)
    slots = EXPERTS * capacity
    soft = name == "soft_moe"
    by_hand = 2 * WIDTH * (2 * slots * HIDDEN + TOKENS * (3 * slots if soft else EXPERTS)) * GROUPS * 3
    flops = compiled.cost_analysis()["flops"]
    return {
        "router": name,
        "options": options,
        "capacity": capacity,
        "flops": flops,
        "flops_over_count": round(flops / by_hand, 4),
        "temporary_mib": round(compiled.memory_analysis().temp_size_in_bytes / 2**20, 1),
        "compile_seconds": round(seconds, 1),
    }


def main() -> int:
    """Compile each case, print its figures as JSON; 1 if a ratio is above the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topology", default="v5e:2x2", help="name of the TPU topology (default: %(default)s)")
    parser.add_argument("--output", type=Path, help="write the figures to this file as JSON")
    arguments = parser.parse_args()
    topology = topologies.get_topology_desc(arguments.topology, platform="tpu")
    device = jax.sharding.SingleDeviceSharding(topology.devices[0])
    rows = []
    for name, options in CASES:
        rows.append(compile_step(name, options, device))
        print(json.dumps(rows[-1]), flush=True)
    report = {
        "command": "python benchmarks/tpu_aot.py",
        "topology": arguments.topology,
        "machine": platform.machine(),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "shape": {"groups": GROUPS, "tokens": TOKENS, "width": WIDTH, "hidden": HIDDEN, "experts": EXPERTS},
        "rows": rows,
    }
    if arguments.output:
        arguments.output.write_text(json.dumps(report, indent=2) + "\n")
    return int(max(row["flops_over_count"] for row in rows) > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
