"""Cases of capacity, softmax affinity, gating noise, Sinkhorn and sparsity-constrained transport."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from moespec.conformance.cases.definition import Definition, groups_tokens, tensor
from moespec.conformance.draw import grid, to_bfloat16
from moespec.conformance.format import Tensor
from moespec.spec import CAPACITY_RULES
from moespec.spec.numerics import softmax

__all__ = ["cases", "utilities"]

G, T, E, D = 2, 6, 3, 4


def cases() -> Iterator[Definition]:
    """All cases of this module."""
    yield from _capacity()
    yield from _softmax()
    yield from _noise()
    yield from _sinkhorn()
    yield from _transport()


def logits(key: str, shape: tuple[int, ...] = (G, T, E), reach: float = 3.0, step: float = 0.125) -> Tensor:
    """Random logits on a grid."""
    return groups_tokens(grid(key, shape, reach=reach, step=step))


def utilities(key: str, shape: tuple[int, ...] = (G, T, E), reach: float = 3.0) -> Tensor:
    """Softmax scores rounded to bfloat16."""
    return groups_tokens(to_bfloat16(softmax(grid(key, shape, reach=reach, step=0.125).astype(np.float64))))


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
    for experts in (3, 6, 7, 12):
        for tokens in range(5, 60):
            for factor in (1.05, 1.1, 1.25, 1.4):
                forms = (tokens * factor / experts, tokens * (factor / experts), tokens / experts * factor)
                if len({int(np.ceil(form)) for form in forms}) > 1:
                    found.append((tokens, experts, factor))
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


def _transport() -> Iterator[Definition]:
    def case(
        name: str,
        kind: str,
        purpose: str,
        stage: str,
        inputs: dict[str, Tensor],
        flags: tuple[str, ...] = (),
        of: str = "",
        **config: Any,
    ) -> Definition:
        gradient = (of, tuple(inputs)) if of else None
        return Definition("sparse_transport", name, kind, purpose, inputs, config, (stage,), flags, gradient)

    def rows(key: str, shape: tuple[int, int] = (3, 4)) -> dict[str, Tensor]:
        return {"values": tensor(grid(key, shape, reach=1.0, step=0.0625), "rows n")}

    order = ("tie_order",)
    yield case("simplex", "value", "Projection on the simplex.", "simplex", rows("transport/a"))
    yield case("simplex_mass", "value", "A mass of 2.5.", "simplex", rows("transport/b"), mass=2.5)
    yield case(
        "simplex_one", "degenerate", "One number becomes the mass.", "simplex", rows("transport/c", (2, 1)), mass=0.5
    )
    yield case("sparse_simplex", "value", "At most two numbers.", "sparse_simplex", rows("transport/d"), nonzeros=2)
    yield case("sparse_simplex_all", "degenerate", "All numbers.", "sparse_simplex", rows("transport/e"), nonzeros=4)
    equal = tensor(np.array([[0.5, 0.5, 0.5, 0.5], [0.25, 0.75, 0.25, 0.25], [0.0, -0.0, -1.0, 0.0]]), "rows n")
    yield case(
        "sparse_simplex_ties",
        "tie",
        "Among equals the lower index is kept.",
        "sparse_simplex",
        {"values": equal},
        order,
        nonzeros=2,
    )

    for stage, options in (("simplex", {}), ("sparse_simplex", {"nonzeros": 2})):
        yield case(
            f"{stage}_gradient", "gradient", "What is kept moves with its mean.", stage,
            rows(f"transport/{stage}/gradient"), (), "projection", mass=1.5, **options,
        )  # fmt: skip

    def potentials(key: str, **shapes: int) -> dict[str, Tensor]:
        drawn = {
            name: tensor(grid(f"{key}/{name}", (G, size), reach=0.5, step=0.0625), f"groups {axis}")
            for (name, size), axis in zip(shapes.items(), ("tokens", "experts"), strict=False)
        }
        return {"utility": utilities(key), **drawn}

    yield case("semi_dual", "value", "At a potential.", "semi_dual", potentials("transport/f", potential=T), capacity=2)
    yield case(
        "semi_dual_all",
        "degenerate",
        "Room for all tokens, half the regularisation.",
        "semi_dual",
        potentials("transport/g", potential=T),
        capacity=T,
        regularization=0.5,
    )
    both = {"token_potential": T, "expert_potential": E}
    yield case("dual", "value", "At two potentials.", "dual", potentials("transport/h", **both), capacity=2)
    yield case(
        "dual_regularised", "value", "Twice the regularisation.", "dual", potentials("transport/i", **both),
        capacity=2, regularization=2.0,
    )  # fmt: skip

    for stage, sizes in (("semi_dual", {"potential": T}), ("dual", both)):
        inputs = potentials(f"transport/{stage}/gradient", **sizes)
        yield case(
            f"{stage}_gradient", "gradient", "The value, by potentials and utility.", stage, inputs, (), "value",
            capacity=2, regularization=0.5,
        )  # fmt: skip

    def plan(
        name: str, kind: str, purpose: str, values: Tensor, flags: tuple[str, ...] = (), **config: Any
    ) -> Definition:
        return case(name, kind, purpose, "transport", {"utility": values}, flags, **config)

    few = ("solver_steps",)
    yield plan("plan", "value", "Twenty steps of Adam by default.", utilities("transport/j"), few, capacity=2)
    yield plan("plan_double", "value", "Twice as many slots as needed.", utilities("transport/k"), few, capacity=4)
    yield plan(
        "plan_five",
        "value",
        "Five larger steps.",
        utilities("transport/l"),
        few,
        capacity=2,
        steps=5,
        learning_rate=0.0625,
    )
    yield plan("plan_token", "value", "Sparse rows.", utilities("transport/m"), capacity=2, sparsity="token")
    yield plan(
        "plan_none", "value", "No sparsity, only regularisation.", utilities("transport/n"), capacity=2, sparsity="none"
    )
    yield plan(
        "plan_early_stop",
        "value",
        "A tolerance that the first gradient meets stops after the first update.",
        utilities("transport/o"),
        few,
        capacity=2,
        tolerance=64.0,
    )
    yield plan(
        "plan_equal",
        "tie",
        "Equal utilities, as at the start of training: lower tokens first, at every step.",
        groups_tokens(np.full((G, T, E), 0.25)),
        order,
        capacity=2,
    )
    yield plan(
        "plan_one_expert",
        "degenerate",
        "One expert.",
        utilities("transport/q", (G, T, 1)),
        ("degenerate_size",),
        capacity=T,
    )
    yield plan("plan_one_slot", "degenerate", "One slot.", utilities("transport/r"), ("degenerate_size",), capacity=1)
