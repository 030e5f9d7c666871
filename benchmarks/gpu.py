"""Measure the time and the peak memory of ViT training steps on the accelerator, for a dense model and for models with experts.

    python benchmarks/gpu.py --backend torch
    python benchmarks/gpu.py --backend jax

The default is a compiled ViT-B/16 in bfloat16 with 256 images. MoE models have experts in every second block. `pass` is the median
time of the loss and its gradients. `step` is the median time of a training step, with clipping and AdamW. Each timing includes reading a
result on the host. `pass_over_dense` is the ratio of `pass` to the `pass` of the dense model. `pass_per_operation` is `pass_over_dense`
divided by the ratio of FLOPs (`moespec count`). For a CPU, use small sizes: --model vit_tiny --image-size 8 --images 4 --rounds 2.
"""

import argparse
import importlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import record
import vits
from tqdm import tqdm

from moespec.models import counts, vit
from moespec.training.objectives.classification import make_loss

ROUTERS = [*list(vits.ROUTERS)[:-1], "sigmoid_token_choice"]


def main() -> None:
    parser = record.parser(__doc__, backends=True, model="vit_b16", image_size=224, images=256, rounds=20)
    parser.add_argument("--experts", type=int, nargs="+", default=[8], help="experts (default: 8)")
    parser.add_argument("--routers", nargs="+", choices=ROUTERS, default=ROUTERS, help="default: all")
    parser.add_argument("--recompute", action="store_true", help="compute blocks anew in the backward pass")
    parser.add_argument("--plain", action="store_true", help="torch without its Triton kernels, to compare with")
    parser.add_argument("--cuda-graph", action="store_true", help="torch: record and replay each step as a CUDA graph")
    options = parser.parse_args()
    result = f"gpu-{options.backend}{'-graph' * options.cuda_graph}"
    if options.plain:
        result += "-plain"
        for name in ("operators", "products"):
            vars(importlib.import_module(f"moespec.backends.torch.{name}"))["on_gpu"] = lambda x: False
    rows: list[dict[str, Any]] = []
    cases = [("dense", 0), *((name, experts) for experts in options.experts for name in options.routers)]
    of_images = {"image_size": options.image_size, "channels": 3, "classes": 1000, "dtype": "bfloat16"}
    for name, experts in tqdm(cases, desc="models"):
        config = vits.of_case(name, options.model, experts, **of_images)
        try:
            row = measured(config, options)
        except (MemoryError, RuntimeError) as error:  # usually because the model does not fit into the device memory
            row = {"error": str(error).splitlines()[0][:200]}
        rows.append({"model": name, **({"experts": experts} if experts else {}), **row})
        for key in ("pass", "step"):
            if key in row and key in rows[0]:
                rows[-1][f"{key}_over_dense"] = row[key] / rows[0][key]
                rows[-1][f"{key}_per_operation"] = row[key] / rows[0][key] * rows[0]["flops"] / row["flops"]
        print(rows[-1], flush=True)
        print(record.write(result, {"config": vars(options), "models": rows}))


def measured(config: vit.VitConfig, options: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds per pass and per step, the peak memory of a step, and the FLOPs of the forward pass of one image."""
    B = importlib.import_module(f"moespec.backends.{options.backend}")
    arrays, params = B.from_numpy(vits.batch_of(config, options.images)), vit.init(config)
    loss = make_loss(B, config, "softmax", recompute=options.recompute)
    seconds = {"pass": timed(B, a_pass(B, loss, B.from_numpy(params), arrays), options.rounds)}
    optimizer = B.OptimizerConfig("adamw", clip=1.0)
    graph = {"cuda_graph": True} if options.cuda_graph else {}
    update, state = B.make_step(loss, optimizer, **graph), [B.init_state(params, optimizer)]

    def one_step() -> Any:
        state[0], metrics = update(state[0], arrays, 1e-3)
        return metrics["loss"]

    if (
        options.backend == "torch" and sys.modules["torch"].cuda.is_available()
    ):  # JAX reports only the peak memory of the whole process
        sys.modules["torch"].cuda.reset_peak_memory_stats()
    seconds["step"] = timed(B, one_step, options.rounds)
    return {**seconds, "most_mib": most(options.backend), "flops": sum(counts.flops(config).values())}


def a_pass(B: Any, loss: Callable[..., Any], params: Any, batch: Any) -> Callable[[], Any]:
    """Return a function that runs the compiled loss and gradients on `params` and `batch`, without router statistics."""
    run = B.compile(B.value_and_grad(lambda *of: loss(*of)[:2]))

    def one() -> Any:
        (value, _), gradients = run(params, batch)
        return value, gradients["norm"]

    return one


def timed(B: Any, one: Callable[[], Any], rounds: int) -> float:
    """Return the median time of a round in seconds, after two warm-up rounds."""
    seconds = []
    for _ in range(rounds + 2):
        start = time.perf_counter()
        B.to_numpy(one())
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[2:])


def most(backend: str) -> float | None:
    """Return the peak device memory in MiB, or None on a CPU."""
    framework: Any = sys.modules[backend]
    if backend == "torch":
        return framework.cuda.max_memory_allocated() / 2**20 if framework.cuda.is_available() else None
    stats = framework.local_devices()[0].memory_stats() or {}
    return stats["peak_bytes_in_use"] / 2**20 if "peak_bytes_in_use" in stats else None


if __name__ == "__main__":
    main()
