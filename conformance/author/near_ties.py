"""Near-tie cases, in which the next lower precision rounds distinct scores to equal scores.

Inputs are exact in bfloat16. Scores that need more bits are computed as logits, which are float32 or better in every run.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from moespec.conformance.author.definition import Definition, call, composed, tensor
from moespec.conformance.author.inputs import grid, permutation
from moespec.conformance.author.routers import router_case
from moespec.conformance.format import Stage, Tensor

__all__ = ["FLAG", "near_codes", "near_router", "near_ties"]

FLAG = "low_precision"
LOGITS = "router_logits"
GROUPS, TOKENS, EXPERTS, WIDTH = 2, 6, 3, 4

PURPOSES = {
    ("near_bfloat16", 12): "Scores that differ by 2^-12: equal in bfloat16, in order in float32.",
    ("near_float32", 40): "Scores that differ by 2^-40: equal in float32, in order in float64.",
}
"""Maps (case name, n) to the purpose of the case. The smallest difference between two scores is 2^-n."""


def near_ties(algorithm: str, *stages: Stage) -> Iterator[Definition]:
    """Yield near-tie cases of stages that order router logits. An argument of these stages must be the reference "router_logits"."""
    for (name, bits), purpose in PURPOSES.items():
        inputs = _product(f"near/{algorithm}/{name}", bits)
        logits = call(LOGITS, {argument: argument for argument in inputs})
        yield composed(algorithm, name, "near_tie", purpose, FLAG, inputs=inputs, stages=(logits, *stages))


def _product(key: str, bits: int) -> dict[str, Tensor]:
    """Return tokens and a kernel whose logits are `1 + k / 2^bits` for k = 0, 1, ... in random order."""
    step = 2.0 ** -(bits // 2)
    counts = [permutation(f"{key}/{group}", TOKENS * EXPERTS).reshape(TOKENS, EXPERTS) for group in range(GROUPS)]
    tokens = np.concatenate([np.ones((GROUPS, TOKENS, 1)), step * np.stack(counts)], axis=2)
    kernel = np.concatenate([np.ones((1, EXPERTS)), step * np.eye(EXPERTS)])
    return {"tokens": tensor(tokens, "groups tokens width"), "kernel": tensor(kernel, "width experts")}


def near_codes(algorithm: str, *stages: Stage) -> Iterator[Definition]:
    """Yield cases of calls that choose by codes of `dselect_k_codes`. A code outside the smooth step's range excludes an expert.

    The first code of each of two selectors is `1/2 + k / 2^bits` for a nonzero k from -3 to 3. The next lower precision
    rounds this code to 1/2. The second code is inside the range of the smooth step.
    """
    for (name, bits), purpose in PURPOSES.items():
        key, step = f"near/{algorithm}/{name}", 2.0 ** -(bits // 2)
        counts = np.stack(
            [np.array([-3, -2, -1, 1, 2, 3])[permutation(f"{key}/{group}", TOKENS)] for group in range(GROUPS)]
        )
        tokens = np.stack([np.ones(counts.shape), step * counts], axis=2)
        inputs = {
            "tokens": tensor(tokens, "groups tokens width"),
            "kernel": tensor([[0.5, 0, 0.5, 0, 0, 0], [step, 0, step, 0, 0, 0]], "width columns"),
            "bias": tensor([0, 0.125, 0, 0.25, 0, 1], "columns"),
        }
        codes = call("dselect_k_codes", {argument: argument for argument in inputs}, choices=2, experts=4)
        purpose = purpose.replace("Scores that differ", "Codes that differ from an end of the step")
        yield composed(algorithm, name, "near_tie", purpose, FLAG, inputs=inputs, stages=(codes, *stages))


def near_router(router: str, params: Mapping[str, Tensor] | None = None, **options: Any) -> Definition:
    """Return a router case with pairs of tokens and pairs of experts. The members of a pair differ in one small component.

    The logits of a pair differ by multiples of 2^-11. bfloat16 rounds these differences away, and float32 keeps them.

    params: router parameters besides the kernel. options: further arguments of `router_case`.
    """
    key, experts = f"near/{router}", 4
    small = np.stack([permutation(f"{key}/{group}", TOKENS) + 1 for group in range(GROUPS)]) / 32
    alike = np.repeat(grid(f"{key}/tokens", (GROUPS, TOKENS // 2, WIDTH - 1), step=0.25), 2, axis=1)
    tokens = np.concatenate([alike, small[..., None]], axis=2)
    columns = np.repeat(grid(f"{key}/kernel", (WIDTH - 1, experts // 2), reach=1.0), 2, axis=1)
    kernel = np.concatenate([columns, np.array([[1, 2, -2, 1]]) / 64])
    return router_case(
        router,
        "near_bfloat16",
        "near_tie",
        "Tokens and experts in pairs whose scores are equal in bfloat16, and in order in float32.",
        FLAG,
        inputs={"tokens": tensor(tokens, "groups tokens width")},
        params={"kernel": tensor(kernel, "width experts"), **(params or {})},
        sizes=(TOKENS, experts, WIDTH),
        **options,
    )
