"""google-research/vmoe: parameters and configurations of its `VisionTransformerMoe`, to ours and back.

Letters of the shape comments: D width, E experts.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from moespec.models.checks import check_value
from moespec.models.interop.arguments import Arguments
from moespec.models.interop.layouts import SAME, Layout, check_lacking, entries, to_ours, to_theirs, unwrapped
from moespec.models.trees import flatten, nested
from moespec.models.vit import VitConfig
from moespec.spec.checks import check_option
from moespec.spec.errors import ConfigError
from moespec.spec.routing import Params

__all__ = ["config_from_vmoe", "from_vmoe", "to_vmoe"]


def from_vmoe(params: Mapping[str, Any], config: VitConfig) -> Params:
    """Our parameters from the parameter tree of vmoe's `VisionTransformerMoe`, a nested mapping of arrays.

    A tree that has them under `params` is taken as well.

    The layouts differ in names only: in both, kernels have their inputs first, attention kernels are
    `(D, heads, D/heads)` and `(heads, D/heads, D)`, and experts are stacked on a leading axis E. What vmoe calls
    `Router/mu` are our slots.

    Both compute the same function when the settings correspond, see `config_from_vmoe`. The arrays returned may share
    memory with `params`.

    Raises ConfigError when vmoe has no model like `config`, or when a parameter is missing or unexpected; ShapeError
    when one has another shape; DtypeError when one is not floating.
    Source: google-research/vmoe, `vmoe/nn/vit_moe.py`, `vmoe/nn/routing.py`, `vmoe/projects/soft_moe/router.py`.
    """
    _check(config)
    return nested(to_ours("params", flatten(unwrapped(params)), entries(config, _NAMES)))


def to_vmoe(params: Params, config: VitConfig) -> Params:
    """The parameter tree of vmoe's `VisionTransformerMoe` from ours: the inverse of `from_vmoe`, with its errors."""
    _check(config)
    return nested(to_theirs("params", flatten(params), entries(config, _NAMES)))


def _check(config: VitConfig) -> None:
    check_lacking("vmoe", config, "group_tokens", "round_experts")
    if config.pool == "gap_norm":
        raise ConfigError("pool='gap_norm': vmoe normalises before the pooling")
    if config.gelu != "tanh":
        raise ConfigError(f"gelu={config.gelu!r}: vmoe has the tanh form only")
    if config.positions in ("sincos2d_moco", "learned_patches"):
        raise ConfigError(f"positions={config.positions!r}: vmoe has learned and sincos2d positions only")
    if config.qk_norm_bias:
        raise ConfigError("qk_norm_bias=True: vmoe normalises queries and keys without a bias")


_NAMES: dict[str, tuple[str, Layout]] = {
    r"(embedding|head)/(kernel|bias)": (r"\1/\2", SAME),
    r"representation/(kernel|bias)": (r"pre_logits/\1", SAME),
    r"token": (r"cls", SAME),
    r"positions": (r"Encoder/posembed_input/pos_embedding", SAME),
    r"blocks/(\d+)/norm1/(\w+)": (r"Encoder/encoderblock_\1/LayerNorm_0/\2", SAME),
    r"blocks/(\d+)/norm2/(\w+)": (r"Encoder/encoderblock_\1/LayerNorm_1/\2", SAME),
    r"blocks/(\d+)/attention/(query|key|value|out)/(\w+)": (r"Encoder/encoderblock_\1/SelfAttention/\2/\3", SAME),
    r"blocks/(\d+)/attention/(query|key)_norm/scale": (r"Encoder/encoderblock_\1/SelfAttention/\2_ln/scale", SAME),
    r"blocks/(\d+)/mlp/w1": (r"Encoder/encoderblock_\1/Mlp/Dense_0/kernel", SAME),
    r"blocks/(\d+)/mlp/b1": (r"Encoder/encoderblock_\1/Mlp/Dense_0/bias", SAME),
    r"blocks/(\d+)/mlp/w2": (r"Encoder/encoderblock_\1/Mlp/Dense_1/kernel", SAME),
    r"blocks/(\d+)/mlp/b2": (r"Encoder/encoderblock_\1/Mlp/Dense_1/bias", SAME),
    r"blocks/(\d+)/moe/experts/w1": (r"Encoder/encoderblock_\1/Moe/Mlp/Dense_0/kernel", SAME),
    r"blocks/(\d+)/moe/experts/b1": (r"Encoder/encoderblock_\1/Moe/Mlp/Dense_0/bias", SAME),
    r"blocks/(\d+)/moe/experts/w2": (r"Encoder/encoderblock_\1/Moe/Mlp/Dense_1/kernel", SAME),
    r"blocks/(\d+)/moe/experts/b2": (r"Encoder/encoderblock_\1/Moe/Mlp/Dense_1/bias", SAME),
    r"blocks/(\d+)/moe/router/kernel": (r"Encoder/encoderblock_\1/Moe/Router/dense/kernel", SAME),
    r"blocks/(\d+)/moe/router/slots": (r"Encoder/encoderblock_\1/Moe/Router/mu", SAME),
    r"blocks/(\d+)/moe/router/scale": (r"Encoder/encoderblock_\1/Moe/Router/scale", SAME),
    r"norm/(\w+)": (r"Encoder/encoder_norm/\1", SAME),
    r"pool/probe": (r"MapHead/probe", SAME),
    r"pool/attention/(query|key|value|out)/(\w+)": (r"MapHead/MultiHeadDotProductAttention/\1/\2", SAME),
    r"pool/attention/(query|key)_norm/scale": (r"MapHead/MultiHeadDotProductAttention/\1_ln/scale", SAME),
    r"pool/norm/(\w+)": (r"MapHead/LayerNorm/\1", SAME),
    r"pool/mlp/w1": (r"MapHead/Mlp/Dense_0/kernel", SAME),
    r"pool/mlp/b1": (r"MapHead/Mlp/Dense_0/bias", SAME),
    r"pool/mlp/w2": (r"MapHead/Mlp/Dense_1/kernel", SAME),
    r"pool/mlp/b2": (r"MapHead/Mlp/Dense_1/bias", SAME),
}


def config_from_vmoe(model: Mapping[str, Any], *, image_size: int, channels: int = 3) -> VitConfig:
    """The `VitConfig` that computes what vmoe's `VisionTransformerMoe` computes with the arguments `model`.

    `model` is the nested mapping that vmoe's configurations call `config.model`. What it leaves out has vmoe's default:
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
    | `capacity` or `num_slots`, absolute | the `capacity_factor` that gives it, rounded to the nearest |
    | `group_size`, in tokens | `group_images` for a multiple of S, else `group_tokens` |
    | a dispatcher's `bfloat16=True`, and always `SoftRouter` | `round_experts` |
    | `split_rngs` | `expert_init` |
    | `deterministic`, not in `model` | `forward` without `noise` |

    What is ignored because it does not change the function: which dispatcher computes it, its precision and its
    partitions. A rate of dropout above 0 gets a warning, since training then differs while evaluation agrees.

    There is no counterpart of its other solvers (`use_lbfgs`, `SparseProjection...`).

    Raises ConfigError for an argument, or a value of one, that has no counterpart.
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
    """The fields of `VitConfig` that concern its MoE blocks."""
    moe.warn_of_dropout("dropout_rate")
    experts, group_size = moe.count("num_experts"), moe.count("group_size")
    whole = group_size % dense.sequence == 0
    split = moe.take("split_rngs", False)
    router = moe.section("router")
    name = router.take("name", "NoisyTopExpertsPerItemRouter").rpartition(".")[2]
    read = {
        "NoisyTopExpertsPerItemRouter": _token_choice_options,
        "NoisyTopItemsPerExpertRouter": _expert_choice_options,
        "SoftRouter": _soft_options,
        "KLProjectionNoisyTopExpertsPerItemRouter": _sinkhorn_token_choice_options,
        "KLProjectionNoisyTopItemsPerExpertRouter": _sinkhorn_expert_choice_options,
        "KSparseProjectionTransportTopItemsPerExpertRouter": _sparse_expert_choice_options,
        "KSparseProjectionTransportTopExpertsPerItemRouter": _sparse_token_choice_options,
    }
    check_option("model.encoder.moe.router.name", name, read)
    ours, options = read[name](router, group_size, experts)
    router.finish()
    rounds = options.pop("round_experts", True)  # the soft router, which does not say, always rounds
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
    """The numbers of the MoE layers, in order."""
    if isinstance(value, str) or not isinstance(value, Collection):
        raise ConfigError(f"model.encoder.moe.layers={value!r}: expected the numbers of layers")
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
        raise ConfigError(f"model.encoder.moe.layers={layers!r}: the model has the layers 0 to {depth - 1}")
    return ",".join(map(str, sorted(set(layers))))


def _token_choice_options(router: Arguments, tokens: int, experts: int) -> tuple[str, dict[str, Any]]:
    choices, noise = router.count("num_selected_experts", 1), router.take("noise_std", 1.0)
    load_weight = router.take("load_loss_weight", 1.0)
    dispatcher = router.section("dispatcher")
    options = {
        "choices": choices,
        "noise_multiplier": noise,
        "batch_priority": dispatcher.choose("batch_priority", False, {False: "none", True: "max"}),
        "importance_weight": router.take("importance_loss_weight", 1.0),
        "load_weight": load_weight if noise else 0.0,  # without noise there is no load loss
        "balance_weight": router.take("gshard_loss_weight", 0.0),
        **_capacity_options(dispatcher, choices * tokens, experts),
    }
    return "softmax_token_choice", options


def _expert_choice_options(router: Arguments, tokens: int, experts: int) -> tuple[str, dict[str, Any]]:
    capacity = _capacity_options(router.section("dispatcher"), tokens, experts)
    return "softmax_expert_choice", {"noise_multiplier": router.take("noise_std", 1.0), **capacity}


def _plan_options(router: Arguments) -> dict[str, Any]:
    """What the routers by a plan have in common, but for how long it is improved."""
    return {"combine_with": router.choose("use_softmax_combine_weights", True, {True: "softmax", False: "plan"})}


def _sinkhorn_token_choice_options(router: Arguments, tokens: int, experts: int) -> tuple[str, dict[str, Any]]:
    router.require("use_lbfgs", False)
    router.skip("use_implicit_differentiation", "gshard_loss_weight")
    given = router.take("importance_loss_weight", 0.0), router.take("load_loss_weight", 0.0)
    _, options = _token_choice_options(router, tokens, experts)
    del options["balance_weight"]
    noise = options["noise_multiplier"]
    return "sinkhorn_token_choice", {
        **options,
        **_plan_options(router),
        "importance_weight": given[0],
        "load_weight": given[1] if noise else 0.0,
        "combine_from_clean_logits": True,
        "sinkhorn_iterations": router.take("maxiter", 20),
    }


def _sinkhorn_expert_choice_options(router: Arguments, tokens: int, experts: int) -> tuple[str, dict[str, Any]]:
    router.skip("use_implicit_differentiation")
    _, options = _expert_choice_options(router, tokens, experts)
    iterations = router.take("maxiter", 20)
    return "sinkhorn_expert_choice", {**options, **_plan_options(router), "sinkhorn_iterations": iterations}


def _sparse_expert_choice_options(router: Arguments, tokens: int, experts: int) -> tuple[str, dict[str, Any]]:
    router.require("adam_lr", 1e-2)
    _, options = _expert_choice_options(router, tokens, experts)
    return "sparsity_constrained_expert_choice", {
        **options,
        **_plan_options(router),
        "noise_multiplier": 0.0,  # vmoe's has the argument, and no noise
        "transport_steps": router.take("maxiter", 20),
    }


def _sparse_token_choice_options(router: Arguments, tokens: int, experts: int) -> tuple[str, dict[str, Any]]:
    router.require("adam_lr", 1e-2)
    router.skip("importance_loss_weight", "load_loss_weight", "gshard_loss_weight")
    _, options = _token_choice_options(router, tokens, experts)
    return "sparsity_constrained_token_choice", {
        **options,
        **_plan_options(router),
        # vmoe's has the arguments, and neither noise nor losses
        **dict.fromkeys(("noise_multiplier", "importance_weight", "load_weight", "balance_weight"), 0.0),
        "transport_steps": router.take("maxiter", 20),
    }


def _soft_options(router: Arguments, tokens: int, experts: int) -> tuple[str, dict[str, Any]]:
    router.require("noise_std", 0.0)
    router.skip("compute_similarity_metrics", "partition_spec", "precision")
    factor, slots = router.take("capacity_factor", 1.0), router.count("num_slots", None)
    return "soft_moe", {
        "norm_form": "rsqrt",
        "capacity_factor": factor if slots is None else slots * experts / tokens,
        "rounding": "round",
        "multiple_of": 1,
    }


def _capacity_options(dispatcher: Arguments, items: int, experts: int) -> dict[str, Any]:
    dispatcher.skip("name", "partition_spec", "einsum_precision")
    rounds = {"round_experts": dispatcher.choose("bfloat16", False, {False: False, True: True})}
    capacity, factor = dispatcher.count("capacity", None), dispatcher.take("capacity_factor", None)
    rounding, multiple = dispatcher.take("capacity_ceil_or_round", "ceil"), dispatcher.take("capacity_multiple_of", 4)
    dispatcher.finish()
    if (capacity is None) == (factor is None):
        raise ConfigError(f"{dispatcher.name}: expected one of capacity={capacity!r} and capacity_factor={factor!r}")
    if factor is None:
        return {**rounds, "capacity_factor": capacity * experts / items, "rounding": "round", "multiple_of": 1}
    return {**rounds, "capacity_factor": factor, "rounding": rounding, "multiple_of": multiple or 1}
