"""Cases of the statistics of routings and of Soft MoE's slots."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from moespec.conformance.author.definition import Definition, call, composed, single, tensor
from moespec.conformance.author.inputs import grid, groups_tokens, scores

NAME = "routing_statistics"
STATISTICS = ("collapse_metrics", "summed_dispatch", "cumulative_dispatch")
G, T, E, D = 2, 6, 3, 4


def cases() -> Iterator[Definition]:
    slots = tensor(grid("statistics/slots", (D, E, 2)), "width experts capacity")
    tokens = tensor(grid("statistics/tokens", (1, T, D)), "groups tokens width")
    scale = tensor(np.float32(4), "")
    inputs = {"tokens": tokens, "slots": slots, "scale": scale}
    soft = call("soft_routing", {name: name for name in inputs})
    of = {"routing": "soft_routing"}
    stages = (soft, *(call(name, of) for name in STATISTICS))
    yield composed(NAME, "soft", "value", "A soft routing with sharp weights.", inputs=inputs, stages=stages)
    yield _chosen("experts", "Tokens in no expert, in some, and in all four.", (G, T, 4), capacity=3)
    purpose = "Empty slots have no weight."
    yield _chosen("empty", purpose, (G, T, E), capacity=4, holes=True, drop_zero=True)
    yield single(NAME, "slot_similarity", "slots", "value", "Two slots for each expert.", slots=slots)


def _chosen(name: str, purpose: str, shape: tuple[int, int, int], *, holes: bool = False, **options: Any) -> Definition:
    values = scores(f"statistics/{name}", shape)
    if holes:
        values = groups_tokens(np.where(grid(f"statistics/{name}/holes", shape) > 0.25, values.array, 0))
    choice, read = call("expert_choice", {"scores": "scores"}, **options), {"routing": "expert_choice"}
    stages = (choice, *(call(each, read) for each in ("experts_per_token", *STATISTICS)))
    return composed(NAME, name, "value", purpose, inputs={"scores": values}, stages=stages)
