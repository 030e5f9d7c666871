"""Time each operator of the torch backend with its Triton kernel and with the plain operations that the kernel replaces.

    python benchmarks/kernels.py

The default sizes are those of a layer of ViT-B/16 for 256 images, with k = 1 and tokens in bfloat16. The script divides the median time
with the kernel by the median time without it (`times_plain`). If `times_plain` is 1 or more, the kernel is not worth having. Without a GPU:
TRITON_INTERPRET=1 python benchmarks/kernels.py --groups 2 --tokens 16 --width 32 --experts 4.
"""

import argparse
from collections.abc import Iterator
from typing import Any

import record
import torch
from torch import Tensor
from torch.utils.benchmark import Timer

from moespec.backends.torch import operators
from moespec.backends.torch.operators import FUNCTIONS


def main() -> None:
    parser = record.parser(__doc__, groups=256, tokens=196, width=768, experts=8)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = {}
    for name, arguments in cases(options, device):
        row = {}
        for way, uses in (("kernel", True), ("plain", False)):
            vars(operators)["on_gpu"] = lambda x, uses=uses: uses
            timer = Timer("run(*arguments)", globals={"run": FUNCTIONS[name], "arguments": arguments})
            row[f"{way}_seconds"] = timer.blocked_autorange(min_run_time=0.5).median
        rows[name] = {**row, "times_plain": round(row["kernel_seconds"] / row["plain_seconds"], 3)}
        print(name, rows[name], flush=True)
    print(record.write("kernels-torch", {"config": vars(options), "operators": rows}))


def cases(options: argparse.Namespace, device: str) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield the name and the arguments of each operator that has a kernel. Every slot is filled, in random order."""
    groups, tokens, width, experts = options.groups, options.tokens, options.width, options.experts
    capacity = tokens // experts
    count, slots = groups * tokens, groups * experts * capacity

    def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, device=device, dtype=dtype)

    index = torch.randperm(count, device=device)[:slots].int()
    inverse = FUNCTIONS["invert_index"](index, count)
    assert isinstance(inverse, Tensor)
    half = torch.bfloat16
    rows, outputs, weight = normal(count, width, dtype=half), normal(slots, width, dtype=half), normal(slots)
    matrix, scores = normal(width, experts), normal(groups, tokens, experts)
    token = torch.rand(groups, experts, tokens, device=device).argsort(-1)[..., :capacity].int().contiguous()
    yield "invert_index", (index, count)
    yield "gather_rows", (rows, index, inverse[:, None])
    yield "sum_rows", (outputs, index, count, inverse[:, None])
    yield "combine_rows", (outputs, weight, index, count, inverse[:, None], half)
    yield "combine_gradients", (rows, outputs, weight, index, inverse[:, None])
    yield "split_product", (rows, matrix)
    yield "split_gradients", (normal(count, experts), rows, matrix)
    yield "take_scores", (scores, token)
    yield "put_scores", (normal(*token.shape), token, tokens)
    yield "sinkhorn_plan", (scores, 20)
    words = torch.arange(count, device=device, dtype=torch.int32)
    yield "threefry", (torch.tensor([1, 2], device=device, dtype=torch.int32), words, words)


if __name__ == "__main__":
    main()
