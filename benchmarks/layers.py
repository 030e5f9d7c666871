"""Compare the time of an MoE layer, for each router, with the time of the dense MLP and of other projects' layers.

    python benchmarks/layers.py --backend torch
    python benchmarks/layers.py --backend jax

A pass computes the output of a layer and the gradients of all parameters and of the tokens. All passes take turns on one core, in
one process. `cpu_seconds` is the minimum CPU time over the rounds, and `spread` is the median divided by the minimum. `times_dense`
is the ratio of `cpu_seconds` to the `cpu_seconds` of the dense MLP. `work` is the number of rows that the experts process per token.
If only experts took time, `times_dense` would equal `work`. Memory has large pages, as in training, and torch
flushes denormals to zero, like XLA.

The other projects, if installed, are soft-moe-pytorch and st-moe-pytorch for torch, and google-research/vmoe for JAX. vmoe needs
flax and checkouts of google-research/vmoe and google-research/vision_transformer on PYTHONPATH.
"""

import argparse
import importlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from moespec.__main__ import use_large_pages

use_large_pages()  # restarts the process
CORE = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
if hasattr(os, "sched_setaffinity"):  # pins the process before JAX and torch count the cores
    os.sched_setaffinity(0, {CORE})
os.environ.update(OMP_NUM_THREADS="1", XLA_FLAGS="--xla_cpu_multi_thread_eigen=false")

import numpy as np  # noqa: E402
import record  # noqa: E402
from routed_layers import perceptron, routed, vmoe_layers  # noqa: E402
from tqdm import tqdm  # noqa: E402

Pass = Callable[[], Any]
"""Runs one forward and backward pass and waits for it."""


def main() -> None:
    sizes = {"groups": 8, "tokens": 196, "width": 384, "hidden": 1536, "experts": 8}
    parser = record.parser(__doc__, backends=True, **sizes, rounds=7)
    parser.add_argument("--routers", nargs="+", help="only these (default: all)")
    parser.add_argument("--name", help="name of the result (default: layers-BACKEND)")
    options = parser.parse_args()
    B = importlib.import_module(f"moespec.backends.{options.backend}")
    layers = dict(passes(B, options))
    rows = measure({name: one for name, (one, _) in layers.items()}, options.rounds)
    dense = rows["dense"]["cpu_seconds"]
    for name, row in rows.items():
        row |= {"times_dense": round(row["cpu_seconds"] / dense, 3), "work": layers[name][1]}
        print(
            f"{name:44s} {1e3 * row['cpu_seconds']:8.1f} ms {row['times_dense']:7.2f} x dense, work {row['work']:.2f}"
        )
    config = {key: value for key, value in vars(options).items() if key != "name"}
    print(record.write(options.name or f"layers-{options.backend}", {"config": config, "layers": rows}))


def measure(each: dict[str, Pass], rounds: int) -> dict[str, dict[str, Any]]:
    """Return, for each pass, the minimum CPU time in seconds and the ratio of the median to the minimum."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(True)
    seconds: dict[str, list[float]] = {name: [] for name in each}
    for one in each.values():  # compilation and warm-up
        one()
        one()
    for _ in tqdm(range(rounds), desc="rounds"):
        for name, one in each.items():  # passes take turns, so a drift in machine speed affects all passes
            start = time.process_time()
            one()
            seconds[name].append(time.process_time() - start)
    return {
        name: {"cpu_seconds": min(values), "spread": round(statistics.median(values) / min(values), 3)}
        for name, values in seconds.items()
    }


def passes(B: Any, options: argparse.Namespace) -> Iterator[tuple[str, tuple[Pass, float]]]:
    """Yield each layer as (name, (pass, work))."""
    random = np.random.default_rng(0)
    groups, count, width, hidden = options.groups, options.tokens, options.width, options.hidden
    tokens = random.standard_normal((groups, count, width)).astype(np.float32)

    def perceptrons(*leading: int) -> dict[str, Any]:
        return {
            name: (random.standard_normal((*leading, *shape)) / np.sqrt(shape[0])).astype(np.float32)
            for name, shape in perceptron(width, hidden).items()
        }

    def dense(p: Any, batch: Any) -> Any:
        x = p["tokens"].reshape((groups * count, width))
        return B.mean((B.gelu(x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]) ** 2), {}

    yield "dense", (one_pass(B, dense, {**perceptrons(), "tokens": tokens}, {}), 1.0)
    sizes = {"groups": groups, "tokens": count, "width": width, "experts": options.experts}
    for name in options.routers or B.ROUTERS:
        layer = routed(B, name, random, **sizes)
        params = {**layer.params, "experts": perceptrons(options.experts), "tokens": tokens}
        arrays = B.from_numpy(params), B.from_numpy(layer.batch)
        routing = layer.route(*arrays, arrays[0]["tokens"]).routing
        dispatch = B.to_numpy(routing.dense().dispatch)
        soft = type(routing).__name__ == "SoftRouting"
        work = float(dispatch[0, 0].size * layer.shape[0] if soft else dispatch.sum()) / (groups * count)

        def loss(p: Any, batch: Any, layer: Any = layer) -> Any:
            x = p["tokens"].reshape((*layer.shape, width))
            return B.mean(B.moe_mlp(x, layer.route(p, batch, x).routing, p["experts"]) ** 2), {}

        yield name, (one_pass(B, loss, params, layer.batch), round(work, 3))
    yield from (of_jax if options.backend == "jax" else of_torch)(tokens, options)


def one_pass(B: Any, loss: Callable[..., Any], params: Any, batch: Any, of: str = "tokens") -> Pass:
    """Return a function that computes a loss and its gradients (compiled in JAX, eager in torch) and waits for the results."""
    run = B.value_and_grad(loss)
    if B.name == "jax":
        run = B.compile(run)
    arrays = B.from_numpy(params), B.from_numpy(batch)

    def one() -> None:
        (value, _), gradient = run(*arrays)
        B.to_numpy((value, gradient[of]))

    return one


def of_jax(tokens: Any, options: argparse.Namespace) -> Iterator[tuple[str, tuple[Pass, float]]]:
    """Yield the layers of google-research/vmoe, if installed."""
    import jax
    import jax.numpy as jnp

    x = jnp.asarray(tokens)
    for name, choices, layer in vmoe_layers(options.tokens, options.hidden, options.experts, x.dtype):
        params = layer.init(jax.random.PRNGKey(0), x)
        run = jax.jit(jax.value_and_grad(lambda p, x, layer=layer: jnp.mean(layer.apply(p, x)[0] ** 2), argnums=(0, 1)))
        yield name, (lambda run=run, params=params: jax.block_until_ready(run(params, x)), float(choices))


def of_torch(tokens: Any, options: argparse.Namespace) -> Iterator[tuple[str, tuple[Pass, float]]]:
    """Yield the layers of soft-moe-pytorch and st-moe-pytorch, if installed, with `tokens / experts` slots per expert."""
    import torch

    slots = round(options.tokens / options.experts)
    for package, make in (
        ("soft_moe_pytorch", lambda m: m.SoftMoE(
            options.width, num_experts=options.experts, num_slots=slots, expert_mult=options.hidden // options.width,
            is_distributed=False, offload_unused_experts_to_cpu=False,
        )),
        ("st_moe_pytorch", lambda m: m.MoE(
            options.width, num_experts=options.experts, expert_hidden_mult=options.hidden / options.width,
            capacity_factor_train=1.0, is_distributed=False,
        )),
    ):  # fmt: skip
        try:
            layer = make(importlib.import_module(package))
        except ModuleNotFoundError:
            continue
        x = torch.from_numpy(tokens).clone().requires_grad_()

        def one(layer: Any = layer, x: Any = x, flush: bool = True) -> None:
            torch.set_flush_denormal(flush)
            result = layer(x)
            y = result if isinstance(result, torch.Tensor) else result[0]
            torch.autograd.grad(y.square().mean(), [x, *layer.parameters()], allow_unused=True)
            torch.set_flush_denormal(True)

        name, work = package.replace("_", "-"), options.experts * slots / options.tokens if "soft" in package else 1.0
        yield name, (one, work)
        yield f"{name}, denormals", (lambda one=one: one(flush=False), work)


if __name__ == "__main__":
    main()
