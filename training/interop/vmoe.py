"""Converts parameters of google-research/vmoe's `VisionTransformerMoe` to ours and back, and vmoe's configurations to `VitConfig`.

Letters in shape comments: D width, E experts.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from moespec.models.checks import check_value
from moespec.models.vit import VitConfig
from moespec.spec.checks import check_option
from moespec.spec.errors import ConfigError
from moespec.training.interop.arguments import Arguments
from moespec.training.interop.flax import flax, mlp_names
from moespec.training.interop.layouts import Project

__all__ = ["VMOE", "config_from_vmoe"]


_BLOCK = r"Encoder/encoderblock_\1"
VMOE = Project(
    "google-research/vmoe",
    {
        **flax(
            *("Encoder", "Encoder/posembed_input/pos_embedding", "MapHead", "SelfAttention", "LayerNorm_1", "Mlp"),
            of_pool=("MultiHeadDotProductAttention", "LayerNorm", "Mlp"),
        ),
        r"blocks/(\d+)/attention/(query|key)_norm/scale": rf"{_BLOCK}/SelfAttention/\2_ln/scale",
        r"pool/attention/(query|key)_norm/scale": r"MapHead/MultiHeadDotProductAttention/\1_ln/scale",
        **mlp_names(r"blocks/(\d+)/moe/experts", rf"{_BLOCK}/Moe/Mlp"),
        r"blocks/(\d+)/moe/router/kernel": rf"{_BLOCK}/Moe/Router/dense/kernel",
        r"blocks/(\d+)/moe/router/slots": rf"{_BLOCK}/Moe/Router/mu",
        r"blocks/(\d+)/moe/router/scale": rf"{_BLOCK}/Moe/Router/scale",
    },
    {
        **{"gelu": ["tanh"], "pool": ["gap", "token", "map"], "positions": ["learned", "sincos2d", "none"]},
        **{"qk_norm_bias": [False], "group_tokens": None, "round_experts": None},
    },
)
"""The `VisionTransformerMoe` of vmoe. Parameters differ only in names: both projects have kernels with inputs first,
attention kernels `(D, heads, D/heads)` and `(heads, D/heads, D)`, and experts stacked on a leading axis E. vmoe's
`Router/mu` is our `router/slots`. Both compute the same function if their settings correspond, see `config_from_vmoe`.

Source: google-research/vmoe, `vmoe/nn/vit_moe.py`, `vmoe/nn/routing.py`, `vmoe/projects/soft_moe/router.py`.
"""


def config_from_vmoe(model: Mapping[str, Any], *, image_size: int, channels: int = 3) -> VitConfig:
    """Returns the `VitConfig` that computes the same function as vmoe's `VisionTransformerMoe` with the arguments `model`.

    `model` is the nested mapping that vmoe's configurations call `config.model`. Missing entries have vmoe's defaults:
    capacities are rounded up to a multiple of 4, and auxiliary losses have weight 1.

    | vmoe | ours |
    |---|---|
    | `NoisyTopExpertsPerItemRouter` | router "softmax_token_choice" |
    | `NoisyTopItemsPerExpertRouter` | router "softmax_expert_choice" |
    | `KLProjectionNoisyTopExpertsPerItemRouter` | router "sinkhorn_token_choice", which combines with the clean logits |
    | `KLProjectionNoisyTopItemsPerExpertRouter` | router "sinkhorn_expert_choice" |
    | `KSparseProjectionTransportTopItemsPerExpertRouter` | router "sparsity_constrained_expert_choice" |
    | `KSparseProjectionTransportTopExpertsPerItemRouter` | router "sparsity_constrained_token_choice" |
    | `SoftRouter` | router "soft_moe" with `norm_form="rsqrt"` |
    | `use_softmax_combine_weights=False` | `combine_with="plan"` |
    | `maxiter` | `sinkhorn_iterations`, `transport_steps` |
    | `batch_priority=True` | `batch_priority="max"` |
    | `noise_std` | `noise_multiplier`: both are divided by the number of experts |
    | `capacity` or `num_slots`, absolute | the `capacity_factor` for this capacity, rounded to the nearest |
    | `group_size`, in tokens | `group_images` for a multiple of S, else `group_tokens` |
    | a dispatcher's `bfloat16=True`, and always `SoftRouter` | `round_experts` |
    | `split_rngs` | `expert_init` |
    | `deterministic`, not in `model` | `forward` without `noise` |

    The dispatcher, its precision and its partitions do not change the result of the model and are ignored. Dropout causes a warning, since
    with dropout, the models agree in evaluation but not in training. Raises ConfigError for an argument or value without a counterpart,
    such as other solvers (`use_lbfgs`, `SparseProjection...`).
    """
    arguments = Arguments("model", model)
    arguments.require("name", "VisionTransformerMoe")
    arguments.require("head_kernel_zero_init", True)
    encoder = arguments.section("encoder")
    encoder.warn_of_dropout("dropout_rate", "attention_dropout_rate")
    position = encoder.section("position_emb")
    position.require("temperature", 10_000)
    moe = encoder.section("moe")
    layers = _layers(moe.take("layers", ()))
    dense = VitConfig(
        image_size=image_size,
        channels=channels,
        patch_size=arguments.square("patch_size"),
        width=arguments.take("hidden_size"),
        classes=0 if (classes := arguments.take("num_classes")) is None else classes,
        head_bias=arguments.take("head_bias_init", 0.0),
        representation=0 if (size := arguments.take("representation_size", None)) is None else size,
        pool=arguments.choose("classifier", "token", {"gap": "gap", "token": "token", "map": "map"}),
        depth=encoder.take("num_layers"),
        hidden=encoder.take("mlp_dim"),
        heads=encoder.take("num_heads"),
        qk_norm=encoder.take("attention_qk_norm", False),
        positions=position.choose("name", "learned", {name: name for name in ("learned", "sincos2d", "none")}),
    )
    fields = _moe_fields(moe, layers, dense) if layers else {}
    for section in (arguments, encoder, position, moe):
        section.finish()
    return replace(dense, **fields)


def _moe_fields(moe: Arguments, layers: tuple[int, ...], dense: VitConfig) -> dict[str, Any]:
    """Returns the fields of `VitConfig` for the MoE blocks."""
    moe.warn_of_dropout("dropout_rate")
    experts, group_size = moe.count("num_experts"), moe.count("group_size")
    whole = group_size % dense.sequence == 0
    split = moe.take("split_rngs", False)
    router = moe.section("router")
    name = router.take("name", "NoisyTopExpertsPerItemRouter").rpartition(".")[2]
    check_option("model.encoder.moe.router.name", name, _ROUTERS)
    ours, read = _ROUTERS[name]
    options = read(router, group_size, experts)
    router.finish()
    rounds = options.pop("round_experts", True)  # vmoe's soft router has no such option and always rounds
    return {
        "moe": _placement(layers, dense.depth),
        "router": ours,
        "experts": experts,
        "router_options": options,
        "expert_init": "independent" if split is True or (split and "params" in split) else "shared",
        "group_images": group_size // dense.sequence if whole else 1,
        "group_tokens": 0 if whole else group_size,
        "round_experts": rounds,
    }


def _layers(value: Any) -> tuple[int, ...]:
    """Returns the indices of the MoE layers, in order."""
    if isinstance(value, str) or not isinstance(value, Collection):
        raise ConfigError(f"model.encoder.moe.layers={value!r}: expected layer numbers")
    for number in value:
        check_value("model.encoder.moe.layers", number, int)
    return tuple(sorted(value))


def _placement(layers: tuple[int, ...], depth: int) -> str:
    odd, count = tuple(range(1, depth, 2)), len(layers)
    if layers == odd:
        return "every_2"
    if layers == tuple(range(depth))[-count:]:
        return f"last_{count}"
    if layers == odd[-count:]:
        return f"every_2_last_{count}"
    if not all(0 <= layer < depth for layer in layers):
        raise ConfigError(f"model.encoder.moe.layers={layers!r}: expected layers from 0 to {depth - 1}")
    return ",".join(map(str, sorted(set(layers))))


def _token_choice(router: Arguments, tokens: int, experts: int, weight: float = 1.0) -> dict[str, Any]:
    choices, noise = router.count("num_selected_experts", 1), router.take("noise_std", 1.0)
    load_weight = router.take("load_loss_weight", weight)
    dispatcher = router.section("dispatcher")
    return {
        "choices": choices,
        "noise_multiplier": noise,
        "batch_priority": dispatcher.choose("batch_priority", False, {False: "none", True: "max"}),
        "importance_weight": router.take("importance_loss_weight", weight),
        "load_weight": load_weight if noise else 0.0,  # without noise, there is no load loss
        "balance_weight": router.take("gshard_loss_weight", 0.0),
        **_capacity_options(dispatcher, choices * tokens, experts),
    }


def _expert_choice(router: Arguments, tokens: int, experts: int) -> dict[str, Any]:
    noise, dispatcher = router.take("noise_std", 1.0), router.section("dispatcher")
    return {"noise_multiplier": noise, **_capacity_options(dispatcher, tokens, experts)}


def _plan(router: Arguments, iterations: str) -> dict[str, Any]:
    """Returns the options that all plan-based routers share. iterations: the name of our option for the number of iterations."""
    combine = router.choose("use_softmax_combine_weights", True, {True: "softmax", False: "plan"})
    return {"combine_with": combine, iterations: router.take("maxiter", 20)}


def _sinkhorn_token_choice(router: Arguments, tokens: int, experts: int) -> dict[str, Any]:
    router.require("use_lbfgs", False)
    router.skip("use_implicit_differentiation")
    options = _token_choice(router, tokens, experts, weight=0.0)
    del options["balance_weight"]  # vmoe's router ignores this weight, since it has no GShard loss
    return {**options, "combine_from_clean_logits": True, **_plan(router, "sinkhorn_iterations")}


def _sinkhorn_expert_choice(router: Arguments, tokens: int, experts: int) -> dict[str, Any]:
    router.skip("use_implicit_differentiation")
    return {**_expert_choice(router, tokens, experts), **_plan(router, "sinkhorn_iterations")}


def _sparse_expert_choice(router: Arguments, tokens: int, experts: int) -> dict[str, Any]:
    router.require("adam_lr", 1e-2)
    # vmoe's router accepts `noise_std` but adds no noise
    return {**_expert_choice(router, tokens, experts), "noise_multiplier": 0.0, **_plan(router, "transport_steps")}


def _sparse_token_choice(router: Arguments, tokens: int, experts: int) -> dict[str, Any]:
    router.require("adam_lr", 1e-2)
    # vmoe's router accepts options for noise and losses but ignores them
    without = dict.fromkeys(("noise_multiplier", "importance_weight", "load_weight", "balance_weight"), 0.0)
    return {**_token_choice(router, tokens, experts), **without, **_plan(router, "transport_steps")}


def _soft(router: Arguments, tokens: int, experts: int) -> dict[str, Any]:
    router.require("noise_std", 0.0)
    router.skip("compute_similarity_metrics", "partition_spec", "precision")
    factor, slots = router.take("capacity_factor", 1.0), router.count("num_slots", None)
    factor = factor if slots is None else slots * experts / tokens
    return {"norm_form": "rsqrt", "capacity_factor": factor, "rounding": "round", "multiple_of": 1}


_ROUTERS: dict[str, tuple[str, Callable[[Arguments, int, int], dict[str, Any]]]] = {
    "NoisyTopExpertsPerItemRouter": ("softmax_token_choice", _token_choice),
    "NoisyTopItemsPerExpertRouter": ("softmax_expert_choice", _expert_choice),
    "SoftRouter": ("soft_moe", _soft),
    "KLProjectionNoisyTopExpertsPerItemRouter": ("sinkhorn_token_choice", _sinkhorn_token_choice),
    "KLProjectionNoisyTopItemsPerExpertRouter": ("sinkhorn_expert_choice", _sinkhorn_expert_choice),
    "KSparseProjectionTransportTopItemsPerExpertRouter": ("sparsity_constrained_expert_choice", _sparse_expert_choice),
    "KSparseProjectionTransportTopExpertsPerItemRouter": ("sparsity_constrained_token_choice", _sparse_token_choice),
}
"""vmoe's router -> our router, and a function that maps (arguments, tokens per group, experts) to our router options."""


def _capacity_options(dispatcher: Arguments, items: int, experts: int) -> dict[str, Any]:
    dispatcher.skip("name", "partition_spec", "einsum_precision")
    rounds = {"round_experts": dispatcher.choose("bfloat16", False, {False: False, True: True})}
    capacity, factor = dispatcher.count("capacity", None), dispatcher.take("capacity_factor", None)
    rounding, multiple = dispatcher.take("capacity_ceil_or_round", "ceil"), dispatcher.take("capacity_multiple_of", 4)
    dispatcher.finish()
    if (capacity is None) == (factor is None):
        raise ConfigError(f"{dispatcher.name}: set exactly one of capacity={capacity!r} and capacity_factor={factor!r}")
    if factor is None:
        return {**rounds, "capacity_factor": capacity * experts / items, "rounding": "round", "multiple_of": 1}
    return {**rounds, "capacity_factor": factor, "rounding": rounding, "multiple_of": multiple or 1}
