"""Cases of capacity, softmax affinity, gating noise and Sinkhorn."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from moespec.conformance.cases.definition import Definition, groups_tokens, tensor
from moespec.conformance.cases.faults import SHAPE, SMALL, array_faults, fault, option
from moespec.conformance.cases.inputs import kernel, logits, tokens
from moespec.conformance.draw import grid
from moespec.conformance.format import Tensor
from moespec.spec import CAPACITY_RULES

__all__ = ["cases"]

G, T, E, D = 2, 6, 3, 4


def cases() -> Iterator[Definition]:
    """All cases of this module."""
    yield from _capacity()
    yield from _softmax()
    yield from _noise()
    yield from _sinkhorn()
    yield from _capacity_faults()
    yield from _softmax_faults()
    yield from _noise_faults()
    yield from _sinkhorn_faults()


def _capacity() -> Iterator[Definition]:
    def case(name: str, kind: str, purpose: str, arguments: list[dict[str, Any]], *flags: str) -> Definition:
        return Definition("capacity", name, kind, purpose, config={"arguments": arguments}, flags=flags)

    def call(tokens: int, experts: int, factor: float, **options: Any) -> dict[str, Any]:
        return {"tokens": tokens, "experts": experts, "factor": factor, **options}

    studied = [(196, 32, 1.0), (196, 32, 2.0), (49, 32, 1.0), (49, 32, 2.0), (196, 128, 1.0), (257, 32, 1.05)]
    yield case(
        "ceil",
        "value",
        "Sizes of the study with one and two choices, rounded up.",
        [call(*sizes, choices=choices) for sizes in studied for choices in (1, 2)],
        "capacity_rounding",
    )
    yield case(
        "round",
        "value",
        "The same sizes rounded to the nearest, as the slots of Soft MoE are.",
        [call(*sizes, rounding="round") for sizes in studied if sizes[0] / sizes[1] >= 1.5],
        "capacity_rounding",
    )
    yield case(
        "half_even",
        "tie",
        "Halves go to the even neighbour: 2.5, 3.5 and 4.5 slots.",
        [call(tokens, 4, 1.0, rounding="round") for tokens in (10, 14, 18)],
        "half_even",
    )
    yield case(
        "multiple",
        "value",
        "Up to a multiple, after the rounding.",
        [call(196, 32, 1.0, multiple_of=m, rounding=r) for m in (1, 2, 4, 8) for r in ("ceil", "round")],
        "capacity_rounding",
    )
    yield case(
        "multiple_above",
        "value",
        "4.6 slots become 5 and then 8, though 4 is the nearest multiple.",
        [call(23, 5, 1.0, multiple_of=4, rounding=r) for r in ("ceil", "round")],
        "capacity_rounding",
    )
    yield case(
        "left_to_right",
        "near_tie",
        "Products that are integers only if choices * tokens * factor is formed before the division.",
        [call(tokens, experts, factor) for tokens, experts, factor in _order_matters()],
        "evaluation_order",
    )
    yield case(
        "degenerate",
        "degenerate",
        "One token, one expert, more experts than tokens, a tiny factor.",
        [call(1, 1, 1.0), call(1, 8, 1.0), call(8, 1, 1.0), call(3, 32, 1.0), call(64, 4, 0.0625), call(4, 4, 8.0)],
        "degenerate_size",
    )
    sizes = [(196, 32, 1.0, 1), (256, 32, 1.25, 2), (1024, 16, 2.0, 2)]
    yield case(
        "rules",
        "value",
        "The rule of each public implementation by name.",
        [
            {"rule": rule, **call(t, e, f, choices=k)}
            for rule in sorted(CAPACITY_RULES)
            for t, e, f, k in sizes
            if k == 1 or rule not in ("vmoe_expert_choice", "st_moe")
        ],
        "named_rule",
    )


def _order_matters() -> list[tuple[int, int, float]]:
    """Sizes at which the ceiling of `n * f / e`, `n * (f / e)` and `n / e * f` are not all the same."""
    found = []
    for e in (3, 6, 7, 12):
        for t in range(5, 60):
            for f in (1.05, 1.1, 1.25, 1.4):
                forms = (t * f / e, t * (f / e), t / e * f)
                if len({int(np.ceil(form)) for form in forms}) > 1:
                    found.append((t, e, f))
    return found[:8]


def _softmax() -> Iterator[Definition]:
    def case(name: str, kind: str, purpose: str, values: Tensor, *flags: str, **options: Any) -> Definition:
        return Definition(
            "softmax_affinity", name, kind, purpose, {"logits": values}, stages=("softmax",), flags=flags, **options
        )

    product = {
        "tokens": tensor(grid("softmax/tokens", (G, T, D)), "groups tokens width"),
        "kernel": tensor(grid("softmax/kernel", (D, E), reach=1.0), "width experts"),
    }
    yield Definition(
        "softmax_affinity",
        "from_tokens",
        "value",
        "Logits are a plain product with the kernel; the softmax runs over experts.",
        product,
        flags=("softmax_axis",),
    )
    yield Definition(
        "softmax_affinity",
        "gradient_product",
        "gradient",
        "Of the logits, by tokens and kernel.",
        product,
        stages=("logits",),
        gradient=("logits", ("tokens", "kernel")),
    )
    yield case("values", "value", "Moderate logits.", logits("softmax/values"), "softmax_axis")
    yield case(
        "square",
        "value",
        "As many tokens as experts: a softmax over the wrong axis keeps the shape.",
        logits("softmax/square", (G, E, E)),
        "softmax_axis",
    )
    yield case(
        "large",
        "value",
        "Logits whose exponential overflows float32: the maximum must be subtracted.",
        logits("softmax/large", reach=240.0, step=4.0),
        "large_logits",
    )
    rows = grid("softmax/shifted", (G, 1, E)) + np.array([0.0, 1.0, -8.0, 16.0, 4.0, -1.0]).reshape(1, T, 1)
    yield case("shifted_rows", "value", "Rows that differ by a constant have equal scores.", groups_tokens(rows))
    yield case("equal", "tie", "A router that starts at 0: every expert gets 1/E.", groups_tokens(np.zeros((G, T, E))))
    yield case("one_expert", "degenerate", "One expert gets 1.", logits("softmax/one", (G, T, 1)), "degenerate_size")
    yield case("one_token", "degenerate", "One token.", logits("softmax/token", (1, 1, E)), "degenerate_size")
    yield case(
        "gradient",
        "gradient",
        "The derivative of a weighted sum of scores.",
        logits("softmax/gradient"),
        gradient=("scores", ("logits",)),
    )


def _noise() -> Iterator[Definition]:
    def case(name: str, kind: str, purpose: str, multiplier: float, experts: int, noise: bool = True) -> Definition:
        inputs = {"logits": logits(f"noise/{name}", (G, T, experts))}
        if noise:
            inputs["noise"] = logits(f"noise/{name}/noise", (G, T, experts), step=0.0625)
        gradient = ("noisy", tuple(inputs)) if kind == "gradient" else None
        return Definition(
            "gating_noise", name, kind, purpose, inputs, {"multiplier": multiplier}, (), ("noise_scale",), gradient
        )

    yield case("values", "value", "A standard deviation of one over the number of experts, 1/3.", 1.0, E)
    yield case("four_experts", "value", "Another number of experts.", 1.0, 4)
    yield case("multiplier", "value", "Two and a half times the usual noise.", 2.5, E)
    yield case("zero", "degenerate", "A multiplier of 0 changes nothing.", 0.0, E)
    yield case("absent", "degenerate", "Without noise the logits are unchanged.", 1.0, E, noise=False)
    yield case("gradient", "gradient", "By logits and noise.", 2.5, E)


def _sinkhorn() -> Iterator[Definition]:
    def case(
        name: str, kind: str, purpose: str, values: Tensor, flags: tuple[str, ...] = (), **config: Any
    ) -> Definition:
        gradient = ("plan", ("logits",)) if kind == "gradient" else None
        return Definition("sinkhorn", name, kind, purpose, {"logits": values}, config, flags=flags, gradient=gradient)

    first = ("column_update_first",)
    yield case("one_iteration", "value", "Columns are updated before rows.", logits("sinkhorn/a"), first, iterations=1)
    yield case(
        "two_iterations", "value", "The second iteration uses the first.", logits("sinkhorn/b"), first, iterations=2
    )
    yield case("default", "value", "Twenty iterations by default.", logits("sinkhorn/c"))
    yield case("square", "value", "As many tokens as experts.", logits("sinkhorn/d", (G, E, E)), first, iterations=2)
    yield case(
        "large",
        "value",
        "Logits that overflow the kernel domain: only the log domain works.",
        logits("sinkhorn/e", reach=120.0, step=2.0),
        ("large_logits",),
        iterations=20,
    )
    yield case("few_tokens", "value", "Fewer tokens than experts.", logits("sinkhorn/f", (G, 2, 5)), iterations=2)
    yield case(
        "tolerance",
        "value",
        "Stops after the iteration whose column sums are within the tolerance, each group for itself.",
        groups_tokens(np.stack([grid("sinkhorn/g", (T, E), reach=0.5), grid("sinkhorn/h", (T, E), reach=4.0)])),
        tolerance=0.02,
    )
    yield case("equal", "tie", "Equal logits give 1/E.", groups_tokens(np.zeros((G, T, E))))
    yield case("one_expert", "degenerate", "One expert gets 1.", logits("sinkhorn/i", (G, T, 1)), ("degenerate_size",))
    yield case("one_token", "degenerate", "One token.", logits("sinkhorn/j", (1, 1, E)), ("degenerate_size",))
    yield case("gradient", "gradient", "Through one iteration.", logits("sinkhorn/k", reach=2.0), iterations=1)
    yield case("gradient_unrolled", "gradient", "Through twenty iterations.", logits("sinkhorn/l", reach=2.0))


def _capacity_faults() -> Iterator[Definition]:
    good = {"tokens": 196, "experts": 32, "factor": 1.0, "choices": 1, "rounding": "ceil", "multiple_of": 1}
    ruled = {"tokens": 196, "experts": 32, "factor": 1.0, "choices": 1, "rule": "tutel"}
    wrong: tuple[tuple[str, str, dict[str, Any], dict[str, Any]], ...] = (
        ("tokens", "tokens", good, {"tokens": 0}),
        ("experts", "experts", good, {"experts": 0}),
        ("factor", "factor", good, {"factor": 0.0}),
        ("factor_small", "factor", good, {"factor": 0.01, "rounding": "round"}),
        ("choices", "choices", good, {"choices": 0}),
        ("rounding", "rounding", good, {"rounding": "floor"}),
        ("multiple_of", "multiple_of", good, {"multiple_of": 0}),
        ("rule_tokens", "tokens", ruled, {"tokens": 0}),
        ("rule_factor_small", "factor", ruled, {"factor": 0.001}),
    )
    for name, argument, right, edit in wrong:
        config = {"arguments": [right]}
        yield option("capacity", "capacity", name, argument, {}, config, arguments=[{**right, **edit}])


def _softmax_faults() -> Iterator[Definition]:
    yield from array_faults("softmax_affinity", "softmax", "logits", {"logits": logits("negative/logits", SHAPE)}, {})
    product = {
        "tokens": tokens("negative/tokens", (SMALL.groups, SMALL.tokens, SMALL.width)),
        "kernel": kernel("negative/kernel", SMALL.width, SMALL.experts),
    }
    for argument in product:
        yield from array_faults("softmax_affinity", "logits", argument, product, {}, f"{argument}_")
    narrow = {"kernel": tensor(grid("negative/kernel/narrow", (SMALL.width - 1, SMALL.experts)), "width experts")}
    yield fault("softmax_affinity", "logits", "width", "ShapeError", "kernel", product, {}, wrong_inputs=narrow)


def _noise_faults() -> Iterator[Definition]:
    noisy, config = (
        {"logits": logits("negative/logits", SHAPE), "noise": logits("negative/noise", SHAPE)},
        {"multiplier": 1.0},
    )
    yield from array_faults("gating_noise", "noise", "noise", noisy, config)
    yield from array_faults("gating_noise", "noise", "logits", noisy, config, "logits_")
    yield option("gating_noise", "noise", "multiplier", "multiplier", noisy, config, multiplier=-1.0)
    fewer = {"noise": logits("negative/noise/few", (SMALL.groups, SMALL.tokens - 1, SMALL.experts))}
    yield fault("gating_noise", "noise", "shape", "ShapeError", "noise", noisy, config, wrong_inputs=fewer)


def _sinkhorn_faults() -> Iterator[Definition]:
    given, config = {"logits": logits("negative/logits", SHAPE)}, {"iterations": 2}
    yield from array_faults("sinkhorn", "sinkhorn", "logits", given, config)
    yield option("sinkhorn", "sinkhorn", "iterations", "iterations", given, config, iterations=0)
    stopped = {**config, "tolerance": 0.5}
    yield option("sinkhorn", "sinkhorn", "tolerance", "tolerance", given, stopped, tolerance=-0.5)
