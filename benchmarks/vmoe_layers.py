"""The layers of google-research/vmoe that ours are compared with."""

from collections.abc import Iterator
from typing import Any


def vmoe_layers(tokens: int, hidden: int, experts: int, dtype: Any) -> Iterator[tuple[str, int, Any]]:
    """Name, choices and module of google-research/vmoe's layers, which must be on the path."""
    from vmoe.nn import vit_moe  # type: ignore[import-not-found]

    capacity = -(-tokens // experts)
    for name, choices, router in (
        *(
            (f"vmoe {kind}, k = {k}", k, {"dispatcher": {"name": kind}})
            for kind in ("einsum", "indices")
            for k in (1, 2)
        ),
        ("vmoe expert choice", 1, {"name": "NoisyTopItemsPerExpertRouter", "dispatcher": {"name": "einsum"}}),
        ("vmoe soft", 1, {"name": "vmoe.projects.soft_moe.router.SoftRouter", "num_slots": capacity}),
    ):
        if "dispatcher" in router:
            router["dispatcher"] |= {"capacity": choices * capacity, "bfloat16": False}
            if "name" not in router:
                router["dispatcher"]["batch_priority"] = False
                router["num_selected_experts"] = choices
        yield (
            name,
            choices,
            vit_moe.MlpMoeBlock(
                mlp_dim=hidden,
                num_experts=experts,
                group_size=tokens,
                deterministic=True,
                router=router,
                dtype=dtype,
            ),
        )
