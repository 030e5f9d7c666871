"""The ViTs that the benchmarks compile and time: a dense model, and models with experts in every second block."""

from typing import Any

import numpy as np

from moespec.models import vit
from moespec.models.families import draws

ROUTERS: dict[str, dict[str, Any]] = {
    "softmax_token_choice": {},
    "softmax_token_choice, k = 2": {"choices": 2},
    "softmax_expert_choice": {},
    "sinkhorn_token_choice": {},
    "soft_moe": {},
    "hash": {},
    "noisy_top_k": {},
}
"""Maps each case to router options. The name of a case begins with the name of the router."""


def of_case(case: str, name: str, experts: int, **fields: Any) -> vit.VitConfig:
    """Return the configuration of the model `name`. case: "dense" or a key of `ROUTERS`."""
    moe = {"moe": "every_2", "experts": experts, "router": case.partition(",")[0]} if case != "dense" else {}
    return vit.named(name, router_options=ROUTERS.get(case, {}), **moe, **fields)


def batch_of(config: vit.VitConfig, images: int) -> dict[str, Any]:
    """Return a batch of random images and targets, with keys for noise if the model draws noise."""
    random = np.random.default_rng(0)
    pixels = random.standard_normal((images, config.image_size, config.image_size, config.channels), np.float32)
    targets = np.eye(config.classes, dtype=np.float32)[random.integers(config.classes, size=images)]
    numbers = {"random": np.zeros((images, 4), np.int32)} if draws(config, images) else {}
    return {"images": pixels, "targets": targets, **numbers}
