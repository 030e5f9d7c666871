"""Compile a MoE layer of every router, forward and backward, for a TPU that need not be there.

    pip install 'moespec[jax]' libtpu
    python benchmarks/tpu_layers.py [--check] [ROUTER ...] [--vmoe FOLDER FOLDER]

Layers in bfloat16 on float32 parameters, compiled by the TPU's own compiler, which says FLOPs, bytes and memory. The count by
hand is three times the forward products of experts, router and (Soft MoE) mixing. In `passes` a float32 product at the highest
precision counts six times, as the six bfloat16 products that it is on a TPU; the compiler's FLOPs do not show it. Soft MoE's
logits are three bfloat16 products, forward: the second and third are among the passes, and not among the FLOPs over the count.
The compiler counts one turn of a loop, so that of layers that multiply the filled slots alone there is only memory.

With --vmoe, google-research/vmoe's layers are compiled in the same way: the folders are checkouts of it and of its
vision_transformer, whose packages must be installed.

The figures are written to `benchmarks/results/layers-tpu.json`. With --check nothing is written: it fails if FLOPs are above
1.05 times the count, or if FLOPs, passes, bytes or memory are above 1.05 times those in the file.
"""

import argparse
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import tpu_compiler  # noqa: F401  # isort: skip  # first: it sets which compiler is used
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.extend.core import jaxprs_in_params
from vmoe_layers import vmoe_layers

import moespec.backends.jax as B
from moespec.backends.jax.grouped import mostly_empty
from moespec.models import layers

GROUPS, TOKENS, WIDTH, HIDDEN, EXPERTS = 32, 196, 384, 1536, 8
RESULT = Path(__file__).parent / "results" / "layers-tpu.json"
LIMIT = 1.05
PASSES = {"HIGHEST": 6, "HIGH": 3}
"""Products in bfloat16 that one of float32 is, by precision."""
MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "softmax_token_choice, k = 2": ("softmax_token_choice", {"choices": 2}),
    "softmax_expert_choice, 24 slots": ("softmax_expert_choice", {"slots_per_expert": 24}),
    "soft_moe, 24 slots": ("soft_moe", {"slots_per_expert": 24}),
}
CASES = {**{name: (name, {}) for name in B.ROUTERS}, **MORE}


def compile_layer(name: str, options: dict[str, Any], device: Any) -> dict[str, Any]:
    """The figures of the layer of a router, or of the dense perceptron."""
    shapes = {"w1": (WIDTH, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, WIDTH), "b2": (WIDTH,)}
    if name == "dense":
        params: dict[str, Any] = {"mlp": {key: np.zeros(shape, np.float32) for key, shape in shapes.items()}}
        batch: dict[str, Any] = {}
    else:
        # BASE deals the tokens of all groups evenly.
        groups, count = (1, GROUPS * TOKENS) if name == "base" else (GROUPS, TOKENS)
        router = B.ROUTERS[name]
        more = {"ids": count} if router.needs == "ids" else {}
        settings = router.options(width=WIDTH, experts=EXPERTS, tokens=count, **more, **options)
        routers = router.init(np.random.default_rng(0), settings)
        experts = {key: np.zeros((EXPERTS, *shape), np.float32) for key, shape in shapes.items()}
        params = {"experts": experts, **({} if more else {"router": routers})}
        batch = {"ids": np.zeros((groups, count), np.int32), "router": routers} if more else {}
        if noise := router.noise(settings):
            batch["noise"] = np.zeros((groups, *noise.shape), np.float32)
    params["scale"] = np.ones(WIDTH, np.float32)  # before the layer, so that its input needs a gradient
    batch["x"] = np.zeros((GROUPS, TOKENS, WIDTH), np.float32)

    def routed(params: Any, batch: Any, x: Any) -> Any:
        weights = params["router"] if "router" in params else batch["router"]
        needed = {"ids": batch["ids"]} if "ids" in batch else {}
        return router.route(weights, x, settings, noise=batch.get("noise"), train=True, **needed)

    def loss(params: Any, batch: Any) -> Any:
        x = B.cast(batch["x"] * params["scale"], "bfloat16")
        if name == "dense":
            y = layers.mlp(B, layers.compute_dtype(B, "bfloat16")(params["mlp"]), x, gelu="tanh")
            return jnp.mean(jnp.square(y.astype(jnp.float32)))
        x = x.reshape(groups, count, WIDTH)
        out = routed(params, batch, x)
        y = B.moe_mlp(x, out.routing, layers.compute_dtype(B, "bfloat16")(params["experts"]))
        return jnp.mean(jnp.square(y.astype(jnp.float32))) + sum(out.losses.values())

    place = partial(jax.tree.map, lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device))
    gradient = jax.jit(jax.grad(loss))
    start = time.perf_counter()
    compiled = gradient.lower(place(params), place(batch)).compile()
    seconds = time.perf_counter() - start
    cost, memory = compiled.cost_analysis(), compiled.memory_analysis()
    row: dict[str, Any] = {
        "temporary_mib": round(memory.temp_size_in_bytes / 2**20, 1),
        "compile_seconds": round(seconds, 1),
    }
    slots, soft = TOKENS, name == "soft_moe"
    if name != "dense":
        routing = jax.eval_shape(routed, params, batch, np.zeros((groups, count, WIDTH), np.float32)).routing
        if not soft and mostly_empty(routing):
            return row
        slots = np.prod((routing.dispatch if soft else routing.token).shape[-2:]) * groups // GROUPS
    products = 2 * slots * HIDDEN + (TOKENS * (3 * slots if soft else EXPERTS) if name != "dense" else 0)
    count_by_hand = 2 * WIDTH * products * GROUPS * 3
    parts = 2 * WIDTH * TOKENS * 2 * slots * GROUPS if soft else 0
    extra = sum(extra_passes(jax.make_jaxpr(jax.grad(loss))(params, batch).jaxpr))
    return {
        "gigaflops": round(cost["flops"] / 1e9, 3),
        "flops_over_count": round((cost["flops"] - parts) / count_by_hand, 4),
        "passes_over_count": round((cost["flops"] + extra) / count_by_hand, 4),
        "gigabytes_accessed": round(cost["bytes accessed"] / 1e9, 3),
        **row,
    }


def compile_vmoe(device: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and figures of vmoe's layers."""
    x = np.zeros((GROUPS, TOKENS, WIDTH), np.float32)
    for name, _, layer in vmoe_layers(TOKENS, HIDDEN, EXPERTS, jnp.bfloat16):

        def loss(params: Any, x: Any, layer: Any = layer) -> Any:
            y, metrics = layer.apply(params["layer"], B.cast(x * params["scale"], "bfloat16"))
            return jnp.mean(jnp.square(y.astype(jnp.float32))) + jnp.sum(
                jnp.asarray(metrics.get("auxiliary_loss", 0.0))
            )

        params = {"layer": jax.eval_shape(layer.init, jax.random.PRNGKey(0), x), "scale": np.ones(WIDTH, np.float32)}
        place = partial(jax.tree.map, lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device))
        start = time.perf_counter()
        compiled = jax.jit(jax.grad(loss)).lower(place(params), place(x)).compile()
        cost, memory = compiled.cost_analysis(), compiled.memory_analysis()
        yield (
            name,
            {
                "gigaflops": round(cost["flops"] / 1e9, 3),
                "gigabytes_accessed": round(cost["bytes accessed"] / 1e9, 3),
                "temporary_mib": round(memory.temp_size_in_bytes / 2**20, 1),
                "compile_seconds": round(time.perf_counter() - start, 1),
            },
        )


def extra_passes(jaxpr: Any) -> Iterator[float]:
    """The FLOPs of each product at a higher precision, times the passes that it has beyond one."""
    for equation in jaxpr.eqns:
        for inner in jaxprs_in_params(equation.params):
            yield from extra_passes(inner)
        if equation.primitive.name == "dot_general" and equation.invars[0].aval.dtype == jnp.float32:
            precision = equation.params["precision"]
            passes = max((PASSES.get(one.name, 1) for one in precision or ()), default=1)
            (left, _), _ = equation.params["dimension_numbers"]
            contracted = np.prod([equation.invars[0].aval.shape[axis] for axis in left])
            yield (passes - 1) * 2.0 * equation.outvars[0].aval.size * contracted


def exceeded(rows: dict[str, Any], committed: dict[str, Any]) -> Iterator[str]:
    """What is above its limit."""
    for name, row in rows.items():
        if row.get("flops_over_count", 0) > LIMIT:
            yield f"{name}: {row['flops_over_count']} times the FLOPs counted"
        for key in ("gigaflops", "passes_over_count", "gigabytes_accessed", "temporary_mib"):
            if key in row and row[key] > LIMIT * committed.get(name, {}).get(key, 0):
                yield f"{name}: {key} is {row[key]}, committed {committed.get(name, {}).get(key)}"


def main() -> int:
    """Compile each layer and print its figures as JSON; 1 if --check finds one above its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="ROUTER", help=f"only these of: dense, {', '.join(CASES)}")
    parser.add_argument("--topology", default="v5e:2x2", help="name of the TPU topology (default: %(default)s)")
    parser.add_argument("--check", action="store_true", help="compare with the committed figures instead")
    parser.add_argument("--vmoe", nargs=2, metavar="FOLDER", help="checkouts of vmoe and its vision_transformer")
    arguments = parser.parse_args()
    sys.path[1:1] = arguments.vmoe or []
    if unknown := set(arguments.names) - {"dense", *CASES}:
        parser.error(f"{', '.join(sorted(unknown))}: expected dense, {', '.join(CASES)}")
    topology = topologies.get_topology_desc(arguments.topology, platform="tpu")
    device = jax.sharding.SingleDeviceSharding(topology.devices[0])
    committed = json.loads(RESULT.read_text())["rows"] if RESULT.is_file() else {}
    rows = {}
    for name in arguments.names or ("dense", *CASES):
        rows[name] = compile_layer(*CASES.get(name, ("dense", {})), device)
        print(json.dumps({name: rows[name]}), flush=True)
    for name, row in compile_vmoe(device) if arguments.vmoe else ():
        rows[name] = row
        print(json.dumps({name: row}), flush=True)
    if arguments.check:
        print(*(above := list(exceeded(rows, committed))), sep="\n")
        return int(bool(above))
    report = {
        "command": "python benchmarks/tpu_layers.py",
        "topology": arguments.topology,
        "optimization_level": os.environ["JAX_OPTIMIZATION_LEVEL"],
        "versions": {name: importlib.metadata.version(name) for name in ("jax", "libtpu")},
        "shape": {"groups": GROUPS, "tokens": TOKENS, "width": WIDTH, "hidden": HIDDEN, "experts": EXPERTS},
        "rows": {**committed, **rows},
    }
    RESULT.write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
