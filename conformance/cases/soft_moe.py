"""Cases of the router `soft_moe`."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from moespec.conformance.author.definition import Definition, tensor
from moespec.conformance.author.inputs import grid, tokens
from moespec.conformance.author.routers import router_case
from moespec.spec import ROUTERS

NAME = "soft_moe"
G, T, E, D = 2, 6, 3, 4


def _case(name: str, kind: str, purpose: str, *flags: str, sizes: tuple[int, int, int] = (T, E, D),
          scale: float = 1.5, **options: Any) -> Definition:  # fmt: skip
    t, e, d = sizes
    key = f"routers/{NAME}/{name}"
    capacity = ROUTERS[NAME].options(tokens=t, experts=e, width=d, **options).capacity()
    slots = tensor(grid(f"{key}/slots", (d, e, capacity)), "width experts capacity")
    params = {"slots": slots, "scale": tensor(np.float32(scale), "")}
    inputs = {"tokens": tokens(f"{key}/tokens", (G, t, d))}
    return router_case(NAME, name, kind, purpose, *flags, params=params, inputs=inputs, sizes=sizes, **options)


def cases() -> Iterator[Definition]:
    yield _case("values", "value", "Two images.", "joint_softmax", "generated_code")
    purpose = "Slots are rounded to the nearest: 7 tokens, 3 experts; logits without normalisation."
    yield _case("rounded", "value", purpose, "capacity_rounding", "norm_form", sizes=(7, E, D), normalize=False)
    yield _case("rsqrt", "value", "The norm of the public code.", "norm_form", norm_form="rsqrt")
    for first, second in (("soft", "uniform"), ("identity", "identity")):
        purpose = f"Ablation: dispatch {first}, combine {second}."
        yield _case(f"{first}_{second}", "value", purpose, "ablation", dispatch=first, combine=second)
    yield _case("scale_zero", "tie", "A scale of 0: every slot sees the mean token.", scale=0.0)
    yield _case("one_token", "degenerate", "One token.", "degenerate_size", sizes=(1, 1, D))
    yield _case("gradient", "gradient", "By tokens, slots, scale and expert weights.")
