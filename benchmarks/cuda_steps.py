"""Compile training steps of one ViT, dense and with experts, for an H100, ahead of time, without one.

    pip install 'moespec[jax]' && pip install --no-deps jax-cuda13-pjrt jax-cuda13-plugin    # of jax's version
    python benchmarks/cuda_steps.py [--model vit_s16] [--images 32] [--experts 8] [CASE ...]

Whole steps as of `tpu_steps.py`. The compiler says the memory; the rest is read from the program that it makes: how many kernels
it starts by kind, and the largest arrays that one kernel writes for another. It has no GPU to measure with, so products are those
of cuBLAS, and which is fast is not known here. In an environment of its own: JAX uses a plugin for CUDA wherever it finds it.
"""

import collections
import math
import os
import re
from typing import Any

import ahead  # isort: skip  # first: it keeps jax to the CPU
import tpu_steps

os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_enable_triton_gemm=false"  # it would be tuned on a GPU
)

H100: dict[str, Any] = {
    "gpu_device_info": {
        "cuda_compute_capability": {"major": 9, "minor": 0},
        "core_count": 132,
        "fpus_per_core": 128,
        "clock_rate_ghz": 1.98,
        "device_memory_size": 80 * 2**30,
        "memory_bandwidth": 3_352_320_000_000,
        "l2_cache_size": 50 * 2**20,
        "threads_per_warp": 32,
        "threads_per_block_limit": 1024,
        "threads_per_core_limit": 2048,
        "registers_per_block_limit": 2**16,
        "registers_per_core_limit": 2**16,
        "shared_memory_per_block": 48 * 2**10,
        "shared_memory_per_block_optin": 227 * 2**10,
        "shared_memory_per_core": 228 * 2**10,
        "block_dim_limit_x": 2**31 - 1,
        "block_dim_limit_y": 2**16 - 1,
        "block_dim_limit_z": 2**16 - 1,
    },
    "platform_name": '"CUDA"',
    "runtime_version": {"major": 13, "minor": 0},
    "dnn_version_info": {"major": 9, "minor": 10},
    "device_description_str": '"NVIDIA H100 80GB HBM3"',
}
"""What the compiler wants to know of it."""
BYTES = {"f32": 4, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "s64": 8, "u64": 8, "pred": 1, "s8": 1, "u8": 1}
NO_KERNEL = ("parameter", "get-tuple-element", "tuple", "bitcast", "constant", "while", "conditional", "call")


def text(values: dict[str, Any]) -> str:
    """A message of protocol buffers as text."""
    parts = (
        f"{name} {{ {text(value)} }}" if isinstance(value, dict) else f"{name}: {value}"
        for name, value in values.items()
    )
    return " ".join(parts)


def kernels(program: str) -> tuple[dict[str, int], list[str]]:
    """How many kernels of each kind a compiled program has, and its largest arrays but for those that it is given."""
    counts: collections.Counter[str] = collections.Counter()
    sizes: dict[str, int] = {}
    bodies, inside = set(re.findall(r"body=%?([\w.-]+)", program)), False
    for line in program.splitlines():
        if not line.startswith(" "):  # a computation begins or ends; those of fusions are one kernel
            inside = line.startswith("ENTRY") or re.split(r"[ (]", line.lstrip("%"))[0] in bodies
        kernel = re.match(r"\s+(?:ROOT )?%?[\w.-]+ = (.+?) ([\w-]+)\((.*)", line)
        if not inside or kernel is None or kernel[2] in NO_KERNEL:
            continue
        target = re.search(r'custom_call_target="([^"]+)"', kernel[3])
        counts[target[1] if target else kernel[2]] += 1
        for kind, shape in re.findall(r"(\w+)\[([\d,]+)\]", kernel[1]):
            if kind in BYTES:
                sizes[f"{kind}[{shape}]"] = BYTES[kind] * math.prod(map(int, shape.split(",")))
    largest = sorted(sizes, key=lambda name: -sizes[name])[:6]
    return dict(counts.most_common()), [f"{name}: {sizes[name] / 2**20:.0f} MiB" for name in largest]


def main() -> None:
    arguments = tpu_steps.parser(__doc__).parse_args()
    device = ahead.devices("h100", "cuda", topology="1x1x1", target_config=text(H100))[0]
    for of, model, recompute in tpu_steps.cases(arguments):
        config = tpu_steps.run(arguments.images, recompute)
        lowered = ahead.lowered_step(model, config.optimizer, arguments.images, device, config=config)
        program, figures = ahead.compiled(lowered)
        counts, largest = kernels(program.as_text())
        row = {"of": of, **figures, "kernels": sum(counts.values()), "by_kind": counts, "largest": largest}
        ahead.add("steps-cuda", row, ("of",), "jax", "jax-cuda13-pjrt")


if __name__ == "__main__":
    main()
