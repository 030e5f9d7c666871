"""The optimisers: steps whose gradients are inputs, of a few parameters of each kind, with all that is kept of them.

They are cases of `vit`, which trains with them. The loss of a step is the sum of the products of the parameters with
given numbers, which are thus its gradient.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from moespec.conformance.author.definition import Definition, composed, tensor
from moespec.conformance.author.inputs import grid
from moespec.conformance.author.models import stage_of

SHAPES: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "head": {"kernel": (4, 3), "bias": (3,)},
    "experts": {"w1": (2, 3, 4), "b1": (2,)},
    "router": {"scale": ()},
}
AROUND: dict[str, Any] = {"weight_decay": 0.25, "decay": "head/kernel=0.5", "clip": 2.0}
ADAM: dict[str, Any] = {"b1": 0.75, "b2": 0.9375, "epsilon": 2.0**-10}
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "adamw": (
        "AdamW with rates by pattern, a frozen parameter and the average of the others.",
        {"name": "adamw", **ADAM, "rates": "experts/b1=0, head/=0.5", "ema": 0.75},
    ),
    "adam": ("Adam, whose decay is in the gradient, after the clip.", {"name": "adam", **ADAM}),
    "sgd": ("Momentum, which the decay does not go through.", {"name": "sgd", "momentum": 0.75}),
    "sgd_nesterov": ("Nesterov's momentum.", {"name": "sgd", "momentum": 0.75, "nesterov": True}),
    "lamb": ("LAMB, also of a parameter that is 0.", {"name": "lamb", **ADAM}),
    "adafactor": (
        "Adafactor; experts are the least of the three axes, along which nothing is factored.",
        {"name": "adafactor", "factored_from": 3, "momentum": 0.75, "decay_cap": 0.5, "momentum_dtype": "float32"},
    ),
    "adafactor_bfloat16": (
        "Adafactor whose momentum is kept in bfloat16.",
        {"name": "adafactor", "factored_from": 4, "momentum": 0.75, "momentum_dtype": "bfloat16"},
    ),
}
"""Case, what it is about, and the optimiser."""
RATES = [2.0**-4, 2.0**-5, 2.0**-4]


def cases() -> Iterator[Definition]:
    for name, (purpose, options) in OPTIMIZERS.items():
        inputs = {}
        for part, leaves in SHAPES.items():
            for leaf, shape in leaves.items():
                key, names = f"optimizer/{part}/{leaf}", [f"axis{axis}" for axis in range(len(shape))]
                values = np.zeros(shape) if leaf == "bias" else grid(f"{key}/value", shape, reach=1.0)
                inputs[f"params/{part}/{leaf}"] = tensor(values, " ".join(names))
                drawn = grid(f"{key}/gradient", (len(RATES), *shape), reach=1.0)
                # The first step is not clipped, the others are.
                drawn[0] /= 8
                inputs[f"gradients/{part}/{leaf}"] = tensor(drawn, " ".join(["steps", *names]))
        stage = stage_of("optimizer_steps", inputs, optimizer={**AROUND, **options}, rates=RATES)
        yield composed("vit", f"optimizer_{name}", "value", purpose, "model", inputs=inputs, stages=(stage,))
