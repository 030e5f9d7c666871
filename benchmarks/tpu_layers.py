"""Compile the gradient of an MoE layer, for each router, ahead of time for a TPU. No TPU is needed.

    pip install 'moespec[jax]' libtpu
    python benchmarks/tpu_layers.py [--check] [ROUTER ...]

The layers compute in bfloat16 with float32 parameters. The TPU compiler reports FLOPs, bytes and memory. The manual count is three times
the FLOPs of a forward pass: the products of the experts, of the router and, in Soft MoE, of dispatch and combine. docs/speed.md describes
the manual count in full. For the logits of Soft MoE, only `passes_over_count` includes the second and third bfloat16 products.

Without ROUTER arguments, the script also compiles the layers of google-research/vmoe, if installed (see layers.py).

The script writes the results to `benchmarks/results/layers-tpu.json`. With --check, the script writes nothing. The check fails if
FLOPs exceed 1.05 times the manual count, or if FLOPs, passes, bytes or memory exceed 1.05 times the values in the file.
"""

import json
import sys
from collections.abc import Iterator
from itertools import chain
from typing import Any

import ahead  # isort: skip  # this import comes first, because it selects the compiler
import jax
import jax.numpy as jnp
import numpy as np
import record
from jax.extend.core import jaxprs_in_params
from routed_layers import perceptron, routed, vmoe_layers

import moespec.backends.jax as B
from moespec.backends.jax import megablox, one_hot
from moespec.backends.jax.grouped import mostly_empty
from moespec.models import layers

GROUPS, TOKENS, WIDTH, HIDDEN, EXPERTS = 32, 196, 384, 1536, 8
LIMIT = 1.05
PASSES = {"HIGHEST": 6, "HIGH": 3}
"""Number of bfloat16 products that replace one float32 product, by precision."""
MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "softmax_token_choice, k = 2": ("softmax_token_choice", {"choices": 2}),
    "softmax_expert_choice, 24 slots": ("softmax_expert_choice", {"slots_per_expert": 24}),
    "soft_moe, 24 slots": ("soft_moe", {"slots_per_expert": 24}),
}
CASES = {**{name: (name, {}) for name in B.ROUTERS}, **MORE}


def gradient_of(device: Any, layer: Any, params: Any, batch: Any) -> tuple[Any, dict[str, Any], Any]:
    """Compile the gradient with respect to the parameters and a scale of the tokens. Return the FLOPs, the row of results and the jaxpr."""
    params = {**params, "scale": np.ones(WIDTH, np.float32)}
    batch = {**batch, "x": jax.ShapeDtypeStruct((GROUPS, TOKENS, WIDTH), jnp.float32)}

    def loss(params: Any, batch: Any) -> Any:
        y, losses = layer(params, batch, B.cast(batch["x"] * params["scale"], "bfloat16"))
        return jnp.mean(jnp.square(y.astype(jnp.float32))) + jnp.sum(jnp.asarray(losses))

    gradient = jax.jit(jax.grad(loss))
    program, row = ahead.compiled(gradient.lower(*ahead.on(device, (params, batch))))
    cost = program.cost_analysis()
    row |= {"gigaflops": round(cost["flops"] / 1e9, 3), "gigabytes_accessed": round(cost["bytes accessed"] / 1e9, 3)}
    row["gigabytes_of_buffers"] = round(ahead.bytes_of_buffers(program) / 1e9, 3)
    return cost["flops"], row, jax.make_jaxpr(gradient)(params, batch).jaxpr


def compile_layer(name: str, options: dict[str, Any], device: Any) -> dict[str, Any]:
    """Return the row of results for the layer of a router, or for the dense MLP."""
    compute, shapes = layers.compute_dtype(B, "bfloat16"), perceptron(WIDTH, HIDDEN)

    def zeros(*leading: int) -> dict[str, Any]:
        return {key: np.zeros((*leading, *shape), np.float32) for key, shape in shapes.items()}

    if name == "dense":

        def dense(params: Any, batch: Any, x: Any) -> Any:
            return layers.mlp(B, compute(params["mlp"]), x, gelu="tanh"), 0.0

        flops, row, jaxpr = gradient_of(device, dense, {"mlp": zeros()}, {})
        return over_count(row, flops, jaxpr, slots=TOKENS, others=0)
    sizes = {"groups": GROUPS, "tokens": TOKENS, "width": WIDTH, "experts": EXPERTS}
    of = routed(B, name, np.random.default_rng(0), **sizes, **options)

    def layer(params: Any, batch: Any, x: Any) -> Any:
        out = of.route(params, batch, x)
        y = B.moe_mlp(x.reshape(*of.shape, WIDTH), out.routing, compute(params["experts"]))
        return y, sum(out.losses.values())

    flops, row, jaxpr = gradient_of(device, layer, {**of.params, "experts": zeros(EXPERTS)}, of.batch)
    x = jax.ShapeDtypeStruct((GROUPS, TOKENS, WIDTH), jnp.float32)
    routing = jax.eval_shape(of.route, of.params, of.batch, x).routing
    if name == "soft_moe":
        slots = int(np.prod(routing.dispatch.shape[-2:]))
        parts = 2 * WIDTH * TOKENS * 2 * slots * GROUPS
        return over_count(row, flops, jaxpr, slots=slots, others=TOKENS * 3 * slots, parts=parts)
    if mostly_empty(routing):  # megablox multiplies whole tiles of rows, so round up
        slots = -(-routing.slot.size // megablox.TILE) * megablox.TILE / GROUPS
    else:
        slots = int(np.prod(routing.token.shape[-2:])) * of.shape[0] // GROUPS
    own, others = of.params.get("router", {}), EXPERTS
    if "w1" in own:  # a capacity predictor: its first layer has two products, not three, as its input has no gradient
        others += 2 * WIDTH // 3 + EXPERTS
    if "projection" in own:
        others = own["projection"].shape[1] * (WIDTH + EXPERTS) // WIDTH
    others *= TOKENS
    tokens = jax.ShapeDtypeStruct((*of.shape, WIDTH), jnp.bfloat16)
    if not mostly_empty(routing) and one_hot.pays(tokens, routing.token):
        single = routing.slot is not None and routing.slot.shape[2] == 1
        # Dispatch, combine and their gradients take four products with one-hot rows, or six if a token has several slots.
        others += slots * TOKENS * (4 if single else 6) / 3
    return over_count(row, flops, jaxpr, slots=slots, others=others)


def over_count(
    row: dict[str, Any], flops: float, jaxpr: Any, *, slots: float, others: float, parts: int = 0
) -> dict[str, Any]:
    """Return the row, with FLOPs and passes divided by the manual count.

    slots: expert rows per group. others: multiply-adds per group outside the experts, divided by the width. parts: FLOPs of
    the second and third product of Soft MoE's logits.
    """
    count_by_hand = 2 * WIDTH * (2 * slots * HIDDEN + others) * GROUPS * 3
    extra = sum(extra_passes(jaxpr))
    return {
        **row,
        "flops_over_count": round((flops - parts) / count_by_hand, 4),
        "passes_over_count": round((flops + extra) / count_by_hand, 4),
    }


def compile_vmoe(device: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the row of results of each layer of vmoe."""
    x = jax.ShapeDtypeStruct((GROUPS, TOKENS, WIDTH), jnp.float32)
    for name, _, module in vmoe_layers(TOKENS, HIDDEN, EXPERTS, jnp.bfloat16):

        def layer(params: Any, batch: Any, x: Any, module: Any = module) -> Any:
            y, metrics = module.apply(params["layer"], x)
            return y, metrics.get("auxiliary_loss", 0.0)

        params = {"layer": jax.eval_shape(module.init, jax.random.PRNGKey(0), x)}
        yield name, gradient_of(device, layer, params, {})[1]


def extra_passes(jaxpr: Any) -> Iterator[float]:
    """Yield, for each float32 product, the FLOPs of all its bfloat16 passes except the first."""
    for equation in jaxpr.eqns:
        inner = list(jaxprs_in_params(equation.params))
        if platforms := equation.params.get("branches_platforms"):
            inner = [one for one, of in zip(inner, platforms, strict=True) if of and "tpu" in of]
        for one in inner:
            yield from extra_passes(one)
        if equation.primitive.name == "dot_general" and equation.invars[0].aval.dtype == jnp.float32:
            precision = equation.params["precision"]
            passes = max((PASSES.get(one.name, 1) for one in precision or ()), default=1)
            (left, _), _ = equation.params["dimension_numbers"]
            contracted = np.prod([equation.invars[0].aval.shape[axis] for axis in left])
            yield (passes - 1) * 2.0 * equation.outvars[0].aval.size * contracted


def exceeded(rows: dict[str, Any], committed: dict[str, Any]) -> Iterator[str]:
    """Yield a message for each value above its limit."""
    for name, row in rows.items():
        if row.get("flops_over_count", 0) > LIMIT:
            yield f"{name}: {row['flops_over_count']} times the FLOPs counted"
        for key in ("gigaflops", "passes_over_count", "gigabytes_accessed", "temporary_mib"):
            if key in row and row[key] > LIMIT * committed.get(name, {}).get(key, 0):
                yield f"{name}: {key} is {row[key]}, committed {committed.get(name, {}).get(key)}"


def main() -> int:
    """Compile each layer and print its row of results as JSON. Return 1 if --check finds a value above its limit."""
    parser = record.parser(__doc__, topology="v5e:2x2")
    known = ("dense", *CASES)
    parser.add_argument("names", nargs="*", choices=[[], *known], metavar="ROUTER", help=f"of: {', '.join(known)}")
    parser.add_argument("--check", action="store_true", help="compare with the committed figures instead")
    arguments = parser.parse_args()
    device = ahead.devices(arguments.topology)[0]
    committed = ahead.recorded("layers-tpu")
    ours = ((name, compile_layer(*CASES.get(name, ("dense", {})), device)) for name in arguments.names or known)
    rows = {}
    for name, row in chain(ours, () if arguments.names else compile_vmoe(device)):
        rows[name] = row
        print(json.dumps({name: row}), flush=True)
    if arguments.check:
        print(*(above := list(exceeded(rows, dict(committed)))), sep="\n")
        return int(bool(above))
    shape = {"groups": GROUPS, "tokens": TOKENS, "width": WIDTH, "hidden": HIDDEN, "experts": EXPERTS}
    figures = {"topology": arguments.topology, "shape": shape, "rows": {**dict(committed), **rows}}
    ahead.write("layers-tpu", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
