"""Measure how the time of an MoE layer grows with the number of experts and with the number of tokens per group, on one core.

    python benchmarks/growth.py --backend torch

`times_dense` is the time of a forward and backward pass divided by the time of the dense MLP, as in `layers.py`. The total number of slots
does not depend on the number of experts. The experts are narrow, so 2 048 experts fit into memory and the cost of routing is visible.
"""

import argparse
import importlib

from layers import measure, passes  # isort: skip  # this import comes first, because it pins the process to one core
import record

ROUTERS = ["softmax_token_choice", "softmax_expert_choice", "sinkhorn_token_choice", "soft_moe"]
WIDTH, HIDDEN = 64, 256
SIZES = [(2048, experts) for experts in (8, 32, 128, 512, 2048)]
SIZES += [(tokens, 32) for tokens in (128, 512, 2048, 8192)]
"""(tokens, experts) of each measurement."""


def main() -> None:
    options = record.parser(__doc__, backends=True, rounds=5).parse_args()
    B = importlib.import_module(f"moespec.backends.{options.backend}")
    rows = []
    for tokens, experts in SIZES:
        sizes = {"groups": 1, "tokens": tokens, "width": WIDTH, "hidden": HIDDEN, "experts": experts}
        case = argparse.Namespace(backend=options.backend, routers=ROUTERS, **sizes)
        of_case = {name: one for name, (one, _) in passes(B, case) if name in ("dense", *ROUTERS)}
        measured = measure(of_case, options.rounds)
        dense = measured["dense"]["cpu_seconds"]
        times = {name: round(measured[name]["cpu_seconds"] / dense, 3) for name in ROUTERS}
        rows.append({**sizes, "dense_cpu_seconds": dense, "times_dense": times})
        print(tokens, experts, times)
    print(record.write(f"growth-{options.backend}", {"rounds": options.rounds, "rows": rows}))


if __name__ == "__main__":
    main()
