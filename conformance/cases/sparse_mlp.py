"""Cases of Sparse-MLP: the rescale sub-layer, and the model."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, composed, tensor
from moespec.conformance.author.inputs import grid
from moespec.conformance.author.models import inputs_of, stage_of
from moespec.conformance.author.variant import Spec, Variant, fixed, variant, without_biases
from moespec.conformance.cases.mixer import MIXER
from moespec.conformance.format import Tensor

SPARSE = {
    **{**MIXER, "moe": "last_1", "sparse_tokens": 6, "sparse_width": 5},
    **{"token_experts": 2, "sparse_token_hidden": 3, "experts": 3, "sparse_hidden": 2},
}
"""A sparse block routes 10 channels, five from each of two images. Importance-score routing removes one of the 10 channels."""
SMALL = {
    **{**SPARSE, "depth": 1, "width": 3, "sparse_tokens": 3, "experts": 2},
    **{"sparse_hidden": 2, "sparse_token_hidden": 2},
}


def cases() -> Iterator[Definition]:
    yield from _rescale()
    yield from _models()


Sizes = tuple[int, int, int, int]


def _rescaled(name: str, kind: str, purpose: str, sizes: Sizes, *flags: str, axes: str = "token channel") -> Definition:
    """Returns a case with two images and the rescale maps for `axes`. sizes: tokens S and channels C, then new S' and C'."""
    (s, c, new_s, new_c), key = sizes, f"sparse_mlp/{name}"
    inputs = {"x": tensor(grid(f"{key}/x", (2, s, c)), "images tokens channels")}
    for axis, old, new in (("token", s, new_s), ("channel", c, new_c)):
        if axis not in axes.split():
            continue
        inputs |= {
            f"params/{axis}_kernel": tensor(grid(f"{key}/{axis}_kernel", (old, new), reach=1.0), f"{axis}s new"),
            f"params/{axis}_bias": tensor(grid(f"{key}/{axis}_bias", (new,), reach=0.5, centre=0.25), "new"),
        }
    stages = (stage_of("rescale", inputs),)
    return composed("sparse_mlp", name, kind, purpose, "rescale_order", *flags, inputs=inputs, stages=stages)


def _rescale() -> Iterator[Definition]:
    yield _rescaled("rescale", "value", "Tokens are mapped, then channels, each with a bias.", (4, 6, 8, 3))
    yield _rescaled("rescale_square", "value", "To the same sizes.", (4, 4, 4, 4))
    yield _rescaled("rescale_tokens", "value", "Without a channel map.", (4, 6, 8, 6), axes="token")
    yield _rescaled("rescale_channels", "value", "Without a token map.", (3, 4, 3, 2), axes="channel")
    yield _rescaled("rescale_one", "degenerate", "One token and one channel.", (1, 1, 3, 2), "degenerate_size")
    yield _rescaled("rescale_gradient", "gradient", "By everything.", (3, 4, 5, 2))


def _model(
    name: str, kind: str, purpose: str, model: Mapping[str, Any], *flags: str, zero: str = "", by: str = ""
) -> Definition:
    """Returns a case of the model. zero: sets parameters whose names end with this text to 0, so that scores tie.
    by: differentiates with respect to inputs whose names contain this text."""
    inputs = inputs_of("sparse_mlp", model, f"sparse_mlp/{name}/0")
    for path, value in inputs.items():
        if zero and path.endswith(zero):
            inputs[path] = Tensor(np.zeros_like(value.array), value.axes)
    stages = (stage_of("sparse_mlp_forward", inputs, model=dict(model)),)
    found: dict[str, Any] = {"of": "forward/logits", "by": tuple(path for path in inputs if by in path)}
    case = partial(composed, "sparse_mlp", name, kind, purpose, "model", *flags, **found)
    return case(inputs=inputs, stages=stages, exact_ties=bool(zero))


def _models() -> Iterator[Definition]:
    cut, one = "importance_cut", {**SPARSE, "depth": 1}
    purpose = "A dense and a sparse block, efficient mode."
    yield _model("importance", "value", purpose, SPARSE, cut, "mixed_axis", "generated_code")
    # The importances are nearly equal, so importance losses would only measure rounding errors.
    no_loss = {"importance_weight": 0.0, "load_weight": 0.0}
    dense = {**SPARSE, "sparse_width": 5, "experts": 0, "moe": "last_2", "router_options": no_loss}
    yield _model("dense_channels", "value", "As Sparse-S: channels are neither rescaled nor routed.", dense, cut)
    purpose = "Importance-score routing in both layers, of a block without rescale sub-layers."
    both = {**one, "sparse_tokens": 4, "sparse_width": 5, "width": 5, "channel_router": "importance_score"}
    yield _model("both_layers", "value", purpose, {**both, "router_options": {"drop": 0.25}}, cut)
    purpose = "Five channels, and the tokens of one image, are a routing group."
    groups = {"group_size": 5, "group_images": 1, "router_options": {"drop": 0.4}}
    yield _model("groups", "value", purpose, {**one, **groups}, cut)
    purpose = "Half of the room: dropped channels and tokens are carried by the residual connection."
    half = {"router_options": {"capacity_factor": 0.5, "drop": 0.25}}
    yield _model("overflow", "overflow", purpose, {**one, **half}, cut, "overflow_drop")
    quarter = {"router_options": {"drop": 0.25}}
    purpose = "Routers that start at 0: every score is equal."
    even = {**one, "sparse_width": 4, "token_experts": 4, "experts": 4, **quarter}
    yield _model("zero_routers", "tie", purpose, even, cut, "tie_order", zero="router/kernel")
    yield _model("gradient_importance", "gradient", "By images and every parameter, efficient mode.", SMALL, cut)
    vanilla = {**SMALL, "router": "softmax_token_choice"}
    yield _model("gradient_vanilla", "gradient", "By the routers and experts, vanilla mode.", vanilla, by="_moe")


def channels_rescaled_first(B: Spec, x: Array, params: Mapping[str, Any]) -> Array:
    """The rescale sub-layer maps channels, then tokens."""
    right = B.rescale(x, params)
    if len(params) < 4:
        return right
    x = x @ params["channel_kernel"] + params["channel_bias"]
    return np.einsum("nsc,sz->nzc", x, params["token_kernel"]) + params["token_bias"][:, None]


def token_bias_over_channels(B: Spec, x: Array, params: Mapping[str, Any]) -> Array:
    """The bias of the token map is added to the channels if the numbers of channels and new tokens are equal."""
    right = B.rescale(x, params)
    bias = params.get("token_bias", ())
    if len(params) < 4 or len(bias) != x.shape[2]:
        return right
    tokens = np.einsum("nsc,sz->nzc", x, params["token_kernel"]) + bias
    return tokens @ params["channel_kernel"] + params["channel_bias"]


def rescaled_around_a_residual(B: Spec, x: Array, params: Mapping[str, Any]) -> Array:
    """If the shapes are equal, the rescale sub-layer adds its input to its output."""
    right = B.rescale(x, params)
    return right + x if right.shape == x.shape else right


def variants() -> Iterator[Variant]:
    yield variant(channels_rescaled_first, "rescale", ledger="SL-1b")
    computes = "The maps of the rescale sub-layer have no biases."
    yield fixed("rescaled_without_biases", computes, "rescale", "SL-2b", params=without_biases)
    yield variant(token_bias_over_channels, "rescale", ledger="SL-1b")
    yield variant(rescaled_around_a_residual, "rescale", ledger="SL-4b")
