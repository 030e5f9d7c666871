"""Cases of the vision transformer with experts: a forward pass with each router, and training steps with the routing of each step."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from moespec.conformance.author.definition import Definition, composed, tensor
from moespec.conformance.author.inputs import grid, signs
from moespec.conformance.author.models import inputs_of, stage_of
from moespec.models.random_keys import of_step

TINY = {"image_size": 4, "patch_size": 2, "channels": 1, "width": 8, "depth": 2, "hidden": 8, "heads": 2, "classes": 3}
SMALL = {**TINY, "width": 4, "hidden": 4, "heads": 1}
STEPS = {**SMALL, "depth": 1, "moe": "last_1", "experts": 3, "pool": "gap", "group_images": 2}
LEAST = {**STEPS, "width": 3, "hidden": 2}

TWO = {"choices": 2}

FORWARD: dict[str, dict[str, Any]] = {
    "soft_moe": {"pool": "gap", "qk_norm": True, "qk_norm_bias": True, "channels": 3},
    "softmax_token_choice": {"pool": "token", "positions": "sincos2d", "router_options": TWO, "group_images": 2},
    "sinkhorn_token_choice": {  # two MoE blocks and two groups
        **{**SMALL, "pool": "map", "gelu": "erf", "moe": "last_2"},
        **{"router_options": {"balance_weight": 0.5}, "group_images": 2},
    },
    "softmax_expert_choice": {"positions": "sincos2d", "gelu": "erf", "group_images": 2},
    "sinkhorn_expert_choice": {"positions": "sincos2d_moco", "moe": "last_half", "group_images": 2},
    "sparsity_constrained_expert_choice": {"expert_init": "shared", "group_images": 2},
    "hash": {**SMALL, "pool": "token", "codes": 3, "token_ids": "position_code", "group_images": 2},
    "multi_hash": {
        **{**SMALL, "router": "hash", "codes": 3, "channels": 2},
        **{"token_ids": "bigram", "router_options": {"hashes": 2}},
    },
    "registers": {
        **{**SMALL, "router": "softmax_expert_choice", "pool": "token", "registers": 2, "positions": "learned_patches"},
        **{"pre_norm": True, "norm_epsilon": 0.125, "layer_scale": 0.5, "qkv_bias": False, "channels": 2},
    },
    "part_of_image": {**SMALL, "router": "softmax_token_choice", "pool": "gap_norm", "registers": 1, "group_tokens": 2},
    "stem": {**SMALL, "stem": 1, "router": "softmax_token_choice", "experts": 2, "channels": 2},
}
"""Maps each case to its model settings. If the settings name no router, the router has the case's name."""

TRAINED: dict[str, tuple[int, dict[str, Any]]] = {
    "softmax_token_choice": (0, {**STEPS, "depth": 2}),  # the only case with a dense block before the MoE block
    "sinkhorn_token_choice": (1, STEPS),
    "softmax_expert_choice": (2, STEPS),
    "sinkhorn_expert_choice": (0, STEPS),
    "sparsity_constrained_expert_choice": (5, {**STEPS, "router_options": {"transport_steps": 5}}),
    "sparsity_constrained_token_choice": (0, {**LEAST, "router_options": {"choices": 2, "transport_steps": 5}}),
    "soft_moe": (0, STEPS),
    "importance_score": (0, {**LEAST, "router_options": {"drop": 0.25}}),  # the router drops two of eight tokens
    "dselect_k": (0, LEAST),
    "base": (4, {**LEAST, "experts": 4}),  # eight tokens can be divided evenly among four experts
    "hash": (0, {**LEAST, "codes": 5, "token_ids": "previous"}),
    "switch": (0, LEAST),
    "s_base": (1, LEAST),
    "gshard": (1, LEAST),
    "noisy_top_k": (0, LEAST),
    "hierarchical_top_k": (1, {**LEAST, "experts": 4, "router_options": {"choices_per_level": 1, "branches": 2}}),
    "strictly_balanced": (1, {**LEAST, "router_options": {"capacity_factor": 1.0}}),
    "sigmoid_token_choice": (0, {**LEAST, "router_options": {"bias_update_rate": 0.0625}}),
    "cosine_token_choice": (0, {**LEAST, "router_options": {"dimensions": 2}}),
    "mixture_of_depths": (0, LEAST),
    "image_choice": (0, LEAST),
    "relu": (0, {**LEAST, "router_options": {"initial_penalty": 0.0625}}),
    "batch_expert_choice": (2, LEAST),
    "variable_budget": (3, {**LEAST, "router_options": {"gain": 0.5, "integral_gain": 0.25}}),
}
"""Maps each router to its model settings, after the index of the first draw in which no training step has a near tie."""


def cases() -> Iterator[Definition]:
    for name, fields in FORWARD.items():
        model = {**TINY, "moe": "every_2", "router": name, "experts": 4, **fields}
        several = model["moe"] == "last_2"
        inputs = inputs_of("vit", model, f"vit/{name}", 4 if several else 2, noisy=several)
        purpose = f"Logits, features and routing of a small MoE-ViT with {name}."
        flags = ("model", "generated_code") if name in ("soft_moe", "softmax_token_choice") else ("model",)
        stages = (stage_of("vit_forward", inputs, model=model),)
        yield composed("vit", name, "value", purpose, *flags, inputs=inputs, stages=stages)
    yield _evaluation()
    yield _router_in_float32()
    yield _dropped()
    for router in TRAINED:
        yield _training(router)
    yield _accumulated()


def _evaluation() -> Definition:
    """Returns a case that runs a model in evaluation mode and in training mode. The router behaves differently in each mode."""
    model = {**LEAST, "router": "base", "experts": 4}
    inputs = inputs_of("vit", model, "vit/evaluation/0")
    stages = (
        stage_of("vit_forward", inputs, name="evaluation", model=model),
        stage_of("vit_forward", inputs, name="training", model=model, train=True),
    )
    purpose = "The router assigns greedily at evaluation, and evenly in training."
    return composed("vit", "evaluation", "value", purpose, "model", inputs=inputs, stages=stages)


def _dropped() -> Definition:
    """Returns a case of a model in training mode with dropout and stochastic depth."""
    model = {**LEAST, "depth": 2, "router": "soft_moe", "experts": 2, "dropout": 0.25, "stochastic_depth": 0.5}
    inputs = inputs_of("vit", model, "vit/dropped/0")
    inputs["random"] = tensor(of_step(2, seed=5, step=7), "images words")
    stages = (stage_of("vit_forward", inputs, model=model, train=True),)
    purpose = "Dropout and stochastic depth, in training."
    return composed("vit", "dropped", "value", purpose, "model", inputs=inputs, stages=stages)


def _router_in_float32() -> Definition:
    """Returns a case of a model whose experts form pairs. The low bits of the router's kernel decide between the experts of a pair.

    bfloat16 drops the low bits. The router's input is exact in bfloat16: patches of +-16 with mean 0 are embedded
    unchanged, the attention adds 0, and the normalisation maps +-16 to +-1.
    """
    model = {**SMALL, "depth": 1, "moe": "last_1", "pool": "gap", "router": "softmax_token_choice", "experts": 4}
    key, block = "vit/router_in_float32", "params/blocks/0"
    inputs = inputs_of("vit", model, key)
    balanced = np.array([[1, 1, -1, -1], [1, -1, 1, -1], [1, -1, -1, 1]])
    patches = 16.0 * np.concatenate([balanced, -balanced, balanced[:2]])  # the patches of two images
    images = patches.reshape(2, 2, 2, 2, 2, 1).transpose(0, 1, 3, 2, 4, 5).reshape(2, 4, 4, 1)
    kernel = signs(f"{key}/signs", (4, 2)) * grid(f"{key}/kernel", (4, 2), reach=0.25, centre=0.75)
    low = np.array([[0, 1, 0, -1], [0, 2, 0, 3], [0, 3, 0, 2], [0, -2, 0, 1]]) / 2**11
    given = {
        "images": images,
        "params/embedding/kernel": np.eye(4).reshape(2, 2, 1, 4),
        f"{block}/moe/router/kernel": np.repeat(kernel, 2, axis=1) + low,
    }
    zero = ["embedding/bias", "positions", "blocks/0/attention/out/kernel", "blocks/0/attention/out/bias"]
    given |= {f"params/{name}": np.zeros(inputs[f"params/{name}"].array.shape) for name in zero}
    inputs |= {name: tensor(values, " ".join(inputs[name].axes)) for name, values in given.items()}
    purpose = "The router of a model in bfloat16 has parameters, logits and scores in float32."
    stages, flags = (stage_of("vit_forward", inputs, model=model),), ("model", "low_precision")
    case = partial(composed, "vit", "router_in_float32", "near_tie", purpose, *flags)
    return case(inputs=inputs, stages=stages, exact_tokens=True)


def _training(router: str) -> Definition:
    """Returns a case of training steps. Training changes the routing of a repeated batch, and no choice is near a tie."""
    draw, fields = TRAINED[router]
    model = {**fields, "router": router}
    key = f"vit/training/{router}/{draw}"
    inputs = inputs_of("vit", model, key, images=4)
    inputs["targets"] = tensor(np.eye(3)[[0, 1, 2, 1]], "images classes")
    # The numbers below are exact in every dtype. With b2 = 0.999, `1 - b2` in float32 would have an error of 1e-5. Some
    # gradients, such as the gradient of a key bias, are 0 up to rounding. The large epsilon prevents full steps along such gradients.
    optimizer = {"b1": 0.75, "b2": 0.9375, "weight_decay": 0.0625, "clip": 1.0, "epsilon": 2.0**-10}
    rates = [2.0**-6] * 2 + [2.0**-5] * 8 + [2.0**-6] * 10
    # The routers below assign tokens differently in training and at evaluation, or update a state only in training.
    training = (
        "base s_base strictly_balanced batch_expert_choice mixture_of_depths sigmoid_token_choice relu variable_budget"
    )
    mode: dict[str, Any] = {"train": True} if router in training.split() else {}
    stages = (stage_of("vit_train", inputs, model=model, optimizer=optimizer, rates=rates, batch=2, **mode),)
    purpose = f"Twenty steps of AdamW with clip and decay, {router}: losses, routing of each step, parameters."
    flags = ("model", "generated_code") if router == "softmax_token_choice" else ("model",)
    return composed("vit", f"training_{router}", "trajectory", purpose, *flags, inputs=inputs, stages=stages)


def _accumulated() -> Definition:
    """Returns a case of training steps whose batches are split into two micro-batches."""
    model = {**LEAST, "router": "switch", "group_images": 1}
    inputs = inputs_of("vit", model, "vit/training/accumulated/0", images=4)
    inputs["targets"] = tensor(np.eye(3)[[0, 1, 2, 1]], "images classes")
    decay = {"weight_decay": 0.0625, "decay": "head/kernel=0.5"}
    optimizer = {"b1": 0.75, "b2": 0.9375, **decay, "clip": 0.25, "epsilon": 2.0**-10}
    options: dict[str, Any] = {"rates": [2.0**-6] * 5, "batch": 2, "accumulate": 2}
    stages = (stage_of("vit_train", inputs, model=model, optimizer=optimizer, **options),)
    purpose = (
        "Five steps of AdamW, of two parts each, whose gradients are averaged before the clip; the head's own decay."
    )
    return composed("vit", "training_accumulated", "trajectory", purpose, "model", inputs=inputs, stages=stages)
