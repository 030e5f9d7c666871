"""Infers the sizes of a model from the shapes of another project's parameters. The user sets the fields that shapes do not determine."""

import math
import re
from collections.abc import Mapping
from typing import Any

from moespec.spec.errors import ConfigError
from moespec.training.interop.layouts import Project

__all__ = ["mixer_sizes", "vit_sizes"]

Shapes = Mapping[str, tuple[int, ...]]


def vit_sizes(project: Project, shapes: Shapes) -> dict[str, Any]:
    """Returns the fields of `VitConfig` that a project's parameters determine. Raises ConfigError naming a missing or wrong parameter."""

    def of(ours: str) -> str:
        """Returns the project's name for our parameter, or an empty string if the project has no such parameter."""
        try:
            return project.counterpart(ours)[0]
        except ConfigError:
            return ""

    kernel, torch = _shape(shapes, of("embedding/kernel"), 4), project.separator == "."
    width, channels, patch = (kernel[0], kernel[1], kernel[2]) if torch else (kernel[3], kernel[2], kernel[0])

    def outputs(ours: str) -> int:
        return _shape(shapes, of(ours), 2)[0 if torch else 1]

    token, positions, query = of("token") in shapes, of("positions"), of("blocks/0/attention/query/kernel")
    sizes: dict[str, Any] = {
        "patch_size": patch,
        "channels": channels,
        "width": width,
        "depth": _depth(shapes, of("blocks/0/norm1/scale")),
        "hidden": outputs("blocks/0/mlp/w1"),
        "pool": "token" if token else "map" if of("pool/probe") in shapes else "gap",
        "classes": outputs("head/kernel") if of("head/kernel") in shapes else 0,
        "gelu": (project.has.get("gelu") or ["erf"])[0],
        "registers": _shape(shapes, of("registers"), 3)[1] if of("registers") in shapes else 0,
        "pre_norm": of("pre_norm/scale") in shapes,
        "qkv_bias": of("blocks/0/attention/query/bias") in shapes,
        "layer_scale": 1e-5 if of("blocks/0/layer_scale1") in shapes else 0.0,
    }
    if of("representation/kernel") in shapes:
        sizes["representation"] = outputs("representation/kernel")
    prefix = token + sizes["registers"]
    if positions in shapes:
        places = _shape(shapes, positions, 3)[1]
        of_all = places - (prefix if project.token_has_position else 0)
        of_patches = bool(prefix) and torch and _is_square(places)
        if not (of_patches and _is_square(of_all)):  # if the shape is ambiguous, the user sets the image size
            sizes["image_size"] = patch * _side(positions, places if of_patches else of_all)
            sizes["positions"] = "learned_patches" if of_patches else "learned"
    if not torch and query in shapes:
        sizes["heads"] = _shape(shapes, query, 3)[1]
    if "fc_norm.weight" in shapes:
        if token:
            raise ConfigError(f"fc_norm.weight: with {of('token')}, only pooling by class token is supported")
        sizes["pool"] = "gap_norm"
    if (norm := of("blocks/0/attention/query_norm/scale")) in shapes:
        sizes |= {"qk_norm": True, "heads": width // _shape(shapes, norm, 1)[0]}
        sizes["qk_norm_bias"] = of("blocks/0/attention/query_norm/bias") in shapes
    return sizes


def mixer_sizes(shapes: Shapes) -> dict[str, Any]:
    """Returns all fields of `MixerConfig`. The parameters of vision_transformer's MLP-Mixer determine every field."""
    patch, _, channels, width = _shape(shapes, "stem/kernel", 4)
    name = "MixerBlock_0/token_mixing/Dense_0/kernel"
    places, token_hidden = _shape(shapes, name, 2)
    return {
        "image_size": patch * _side(name, places),
        "patch_size": patch,
        "channels": channels,
        "width": width,
        "depth": _depth(shapes, "MixerBlock_0/LayerNorm_0/scale"),
        "token_hidden": token_hidden,
        "hidden": _shape(shapes, "MixerBlock_0/channel_mixing/Dense_0/kernel", 2)[1],
        "classes": _shape(shapes, "head/kernel", 2)[1] if "head/kernel" in shapes else 0,
    }


def _shape(shapes: Shapes, name: str, axes: int) -> tuple[int, ...]:
    if name not in shapes:
        raise ConfigError(f"{name} is missing; the model's sizes cannot be inferred without it")
    if len(shapes[name]) != axes or not all(shapes[name]):
        raise ConfigError(f"{name} has shape {shapes[name]}, expected {axes} axes")
    return shapes[name]


def _depth(shapes: Shapes, first: str) -> int:
    """Infers the number of blocks from the block numbers in parameter names. first: the name of a parameter in block 0."""
    start, _, rest = first.partition("0")
    numbers = (re.fullmatch(rf"{re.escape(start)}(\d+){re.escape(rest)}", name) for name in shapes)
    return 1 + max((int(number[1]) for number in numbers if number), default=-1)


def _side(name: str, places: int) -> int:
    if not _is_square(places):
        raise ConfigError(f"{name} has positions for {places} patches, expected a square number")
    return math.isqrt(places)


def _is_square(places: int) -> bool:
    return places > 0 and math.isqrt(places) ** 2 == places
