"""Cases of the MLP-Mixer and of Sparse-MLP: whole models, their gradients, and the rescale sub-layer."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from moespec.conformance.cases.definition import Definition, tensor
from moespec.conformance.cases.faults import array_faults, fault
from moespec.conformance.cases.models import parameters
from moespec.conformance.draw import grid
from moespec.conformance.format import Tensor

__all__ = ["cases"]

MIXER = {
    **{"image_size": 4, "patch_size": 2, "channels": 1, "classes": 2},
    **{"width": 5, "depth": 2, "token_hidden": 3, "hidden": 6},
}
SQUARE = {**MIXER, "width": 4, "token_hidden": 3, "hidden": 3, "depth": 1}
"""As many patches as channels, and MLPs of equal sizes: whatever exchanges the axes keeps every shape."""
SPARSE = {
    **{**MIXER, "moe": "last_1", "sparse_tokens": 6, "sparse_width": 5},
    **{"token_experts": 2, "sparse_token_hidden": 3, "experts": 3, "sparse_hidden": 2},
}
"""Two images have 10 channels in a sparse block, one of which importance-score routing removes."""
SMALL = {
    **{**SPARSE, "depth": 1, "width": 3, "sparse_tokens": 3, "experts": 2},
    **{"sparse_hidden": 2, "sparse_token_hidden": 2},
}


def cases() -> Iterator[Definition]:
    """All cases of this module."""
    yield from _mixer()
    yield from _rescale()
    yield from _sparse()
    yield from _rescale_faults()


def _model(
    algorithm: str,
    name: str,
    kind: str,
    purpose: str,
    model: Mapping[str, Any],
    flags: tuple[str, ...] = (),
    *,
    zero: str = "",
    by: str = "",
) -> Definition:
    """A case of a whole model.

    zero: the last name of parameters that are 0, so that scores tie. by: what the names of the inputs that a gradient
    is by have in them.
    """
    key = f"{algorithm}/{name}/0"
    size = (2, model["image_size"], model["image_size"], 1)
    inputs = {
        "images": tensor(grid(f"{key}/images", size), "images height width channels"),
        **parameters(dict(model), key, algorithm),
    }
    for path, value in inputs.items():
        if zero and path.endswith(zero):
            inputs[path] = Tensor(np.zeros_like(value.array), value.axes)
    # What the last block of a Mixer adds to all channels alike the final norm takes away: a gradient of 0 has no scale.
    wrt = tuple(path for path in inputs if by in path and not path.endswith("token_mlp/b2"))
    gradient = ("logits", wrt) if kind == "gradient" else None
    config, flags = {"model": dict(model)}, ("model", *flags)
    return Definition(
        algorithm, name, kind, purpose, inputs, config, ("forward",), flags, gradient, exact_ties=bool(zero)
    )


def _mixer() -> Iterator[Definition]:
    def case(name: str, kind: str, purpose: str, model: Mapping[str, Any], *flags: str) -> Definition:
        return _model("mixer", name, kind, purpose, model, ("mixed_axis", *flags))

    yield case("values", "value", "Logits and features of two blocks.", MIXER, "generated_code")
    yield case("square", "value", "As many patches as channels: exchanged axes keep every shape.", SQUARE)
    yield case("erf", "value", "The exact form of GELU.", {**SQUARE, "gelu": "erf"}, "gelu_form")
    yield case("one_patch", "degenerate", "One patch.", {**SQUARE, "patch_size": 4}, "degenerate_size")
    yield case("gradient", "gradient", "By images and parameters.", SQUARE)


def _maps(key: str, sizes: tuple[int, int, int, int], *, channels: bool = True) -> dict[str, Tensor]:
    """Two images and the maps of the rescale sub-layer; `sizes` are S, C, S', C'."""
    s, c, new_s, new_c = sizes
    inputs = {
        "x": tensor(grid(f"{key}/x", (2, s, c)), "images tokens channels"),
        "params/token_kernel": tensor(grid(f"{key}/token_kernel", (s, new_s), reach=1.0), "tokens new"),
        "params/token_bias": tensor(grid(f"{key}/token_bias", (new_s,), reach=0.5, centre=0.25), "new"),
    }
    if channels:
        inputs["params/channel_kernel"] = tensor(grid(f"{key}/channel_kernel", (c, new_c), reach=1.0), "channels new")
        inputs["params/channel_bias"] = tensor(grid(f"{key}/channel_bias", (new_c,), reach=0.5, centre=0.25), "new")
    return inputs


def _rescale() -> Iterator[Definition]:
    def case(
        name: str, kind: str, purpose: str, sizes: tuple[int, int, int, int], *flags: str, channels: bool = True
    ) -> Definition:
        inputs = _maps(f"sparse_mlp/{name}", sizes, channels=channels)
        gradient = ("rescaled", tuple(inputs)) if kind == "gradient" else None
        flags = ("rescale_order", *flags)
        return Definition("sparse_mlp", name, kind, purpose, inputs, {}, ("rescale",), flags, gradient)

    yield case("rescale", "value", "Tokens are mapped, then channels, each with a bias.", (4, 6, 8, 3))
    yield case("rescale_square", "value", "To the same sizes.", (4, 4, 4, 4))
    yield case("rescale_tokens", "value", "Without a channel map.", (4, 6, 8, 6), channels=False)
    yield case("rescale_one", "degenerate", "One token and one channel.", (1, 1, 3, 2), "degenerate_size")
    yield case("rescale_gradient", "gradient", "By everything.", (3, 4, 5, 2))


def _sparse() -> Iterator[Definition]:
    def case(name: str, kind: str, purpose: str, model: Mapping[str, Any], *flags: str, **options: Any) -> Definition:
        return _model("sparse_mlp", name, kind, purpose, model, flags, **options)

    vanilla, cut = {"router": "softmax_token_choice"}, "importance_cut"
    yield case(
        "importance",
        "value",
        "A dense and a sparse block, efficient mode.",
        SPARSE,
        cut,
        "mixed_axis",
        "generated_code",
    )
    # Its importances are nearly equal: the loss would be a difference of roundings.
    no_loss = {"importance_weight": 0.0, "load_weight": 0.0}
    yield case(
        "dense_channels",
        "value",
        "As Sparse-S: channels are neither rescaled nor routed.",
        {**SPARSE, "sparse_width": 5, "experts": 0, "moe": "last_2", "router_options": no_loss},
        cut,
    )
    yield case(
        "groups",
        "value",
        "Five channels, and the tokens of one image, are a routing group.",
        {**SPARSE, "depth": 1, "group_size": 5, "group_images": 1, "router_options": {"drop": 0.4}},
        cut,
    )
    yield case(
        "overflow",
        "overflow",
        "Half of the room: dropped channels and tokens are carried by the residual connection.",
        {**SPARSE, "depth": 1, "router_options": {"capacity_factor": 0.5, "drop": 0.25}},
        cut,
        "overflow_drop",
    )
    yield case(
        "two_choices",
        "value",
        "A channel chooses two experts; the importance score is still its highest.",
        {**SPARSE, "depth": 1, "token_choices": 2, "router_options": {"drop": 0.25}},
        cut,
    )
    yield case(
        "zero_routers",
        "tie",
        "Routers that start at 0: every score is equal.",
        {**SPARSE, "depth": 1, "sparse_width": 4, "token_experts": 4, "experts": 4, "router_options": {"drop": 0.25}},
        cut,
        "tie_order",
        zero="router/kernel",
    )
    yield case("gradient_importance", "gradient", "By images and every parameter, efficient mode.", SMALL, cut)
    yield case(
        "gradient_vanilla", "gradient", "By the routers and experts, vanilla mode.", {**SMALL, **vanilla}, by="_moe"
    )


def _rescale_faults() -> Iterator[Definition]:
    name, stage, given = "sparse_mlp", "rescale", _maps("negative/rescale", (2, 3, 4, 2))
    for path, value in given.items():
        argument = path.removeprefix("params/")
        yield from array_faults(name, stage, path, given, {}, "" if path == "x" else f"{argument}_")
        if path != "x":
            longer = {path: Tensor(np.concatenate([value.array] * 2), value.axes)}
            yield fault(name, stage, f"{argument}_size", "ShapeError", argument, given, {}, wrong_inputs=longer)
