"""The plans of sparsity-constrained transport for a batch of groups, beside POT's, in one process and on one core.

    pip install POT
    python benchmarks/transport.py --backend torch

Ours are the router's: 20 updates of Adam on the semi-dual of all groups at once, in float32. POT solves the semi-dual of one group
after the other by L-BFGS, in float64: until its own tolerance, and with at most as many iterations as we make updates. The utility,
the masses, the regularisation and the non-zeros of a column are the same, the accuracy is not: `row_error` is how far the sum of a
row is from 1, on average, and `objective` what is maximised, of a plan that need not meet the sums, per token. Only a plan without
row error is comparable by it. Without POT there is only ours.
"""

import contextlib
import importlib
import os
from typing import Any

from layers import measure  # isort: skip  # first: it sees to one core
import numpy as np
import record

from moespec import spec


def main() -> None:
    parser = record.parser(__doc__, backends=True)
    parser.add_argument("--groups", type=int, default=64, help="groups of tokens (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=196, help="tokens of a group (default: %(default)s)")
    parser.add_argument("--experts", type=int, nargs="+", default=[8, 32], metavar="E")
    parser.add_argument("--steps", type=int, default=20, help="updates, iterations (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds (default: %(default)s)")
    options = parser.parse_args()
    B = importlib.import_module(f"moespec.backends.{options.backend}")
    rows = []
    for experts in options.experts:
        nonzeros = spec.expert_capacity(options.tokens, experts, 1.0)
        logits = np.random.default_rng(0).standard_normal((options.groups, options.tokens, experts))
        utility = np.stack([spec.softmax_affinity(group) for group in logits.astype(np.float32)])
        each = {"moespec": ours(B, utility, nonzeros, options.steps), **pot(utility, nonzeros, options.steps)}
        measured = measure(each, options.rounds)
        for name, row in measured.items():
            row |= quality(each[name](), utility, nonzeros)
            print(f"{experts:4d} experts  {name:28s} {1e3 * row['cpu_seconds']:9.1f} ms  {row}")
        rows.append({"experts": experts, "nonzeros": nonzeros, "each": measured})
    config = {key: value for key, value in vars(options).items() if key != "experts"}
    print(record.write(f"transport-{options.backend}", {"config": config, "rows": rows}))


def ours(B: Any, utility: Any, nonzeros: int, steps: int) -> Any:
    """Compiled with JAX, op by op with torch."""

    def solve(utility: Any) -> Any:
        return B.sparse_transport_affinity(utility, capacity=nonzeros, steps=steps)

    if B.name == "jax":
        solve = B.compile(solve)
    arrays = B.from_numpy(utility.astype(np.float32))
    return lambda: B.to_numpy(solve(arrays))


def pot(utility: Any, nonzeros: int, steps: int) -> dict[str, Any]:
    """POT, which minimises a cost, one group after the other."""
    try:
        from ot.smooth import smooth_ot_semi_dual
    except ModuleNotFoundError:
        return {}
    _, tokens, experts = utility.shape
    masses = np.ones(tokens), np.full(experts, tokens / experts)

    def solve(**limit: int) -> Any:
        options = {"reg": 1.0, "reg_type": "sparsity_constrained", "max_nz": nonzeros, **limit}
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # it prints shapes
            return np.stack([smooth_ot_semi_dual(*masses, -group, **options) for group in utility])

    return {"POT": solve, f"POT, {steps} iterations": lambda: solve(numItermax=steps)}


def quality(plan: Any, utility: Any, nonzeros: int) -> dict[str, float]:
    """How near to the constraints the plans are, and what they are worth."""
    assert (np.count_nonzero(plan, axis=1) <= nonzeros).all()
    worth = np.sum(plan * utility - 0.5 * plan * plan, axis=(1, 2)) / utility.shape[1]
    return {
        "row_error": round(float(np.abs(plan.sum(axis=2) - 1).mean()), 3),
        "column_error": round(float(np.abs(plan.sum(axis=1) * utility.shape[2] / utility.shape[1] - 1).max()), 6),
        "objective": round(float(worth.mean()), 4),
    }


if __name__ == "__main__":
    main()
