"""Cases of the operations around the routers."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from moespec.conformance.cases.definition import Definition, tensor
from moespec.conformance.cases.faults import array_faults, option, size_faults
from moespec.conformance.draw import grid
from moespec.conformance.format import Tensor

__all__ = ["cases"]


def cases() -> Iterator[Definition]:
    """All cases of this module."""
    yield from _values()
    yield from _faults()


def _values() -> Iterator[Definition]:

    def case(
        name: str,
        stage: str,
        kind: str,
        purpose: str,
        inputs: dict[str, Tensor],
        flags: tuple[str, ...] = (),
        of: str = "",
        **config: Any,
    ) -> Definition:
        gradient = (of, tuple(inputs)) if of else None
        return Definition("network", name, kind, purpose, inputs, config, (stage,), flags, gradient)

    def drawn(key: str, axes: str, *shape: int, **options: float) -> Tensor:
        return tensor(grid(f"network/{key}", shape, **options), axes)

    wide = drawn("wide", "rows width", 4, 8, reach=6.0)
    for form in ("tanh", "erf"):
        yield case(f"gelu_{form}", "gelu", "value", f"The {form} form.", {"x": wide}, ("gelu_form",), form=form)
    yield case("gelu_default", "gelu", "value", "The tanh form is the default.", {"x": wide}, ("gelu_form",))
    yield case("gelu_zero", "gelu", "degenerate", "0 gives 0.", {"x": tensor(np.zeros((1, 2)), "rows width")})
    for form in ("tanh", "erf"):
        x = drawn("gelu/gradient", "rows width", 2, 6)
        yield case(f"gelu_{form}_gradient", "gelu", "gradient", f"Of the {form} form.", {"x": x}, (), "y", form=form)

    def norm(key: str, bias: bool = True, width: int = 6) -> dict[str, Tensor]:
        inputs = {
            "x": drawn(f"{key}/x", "images tokens width", 2, 3, width),
            "scale": drawn(f"{key}/scale", "width", width, reach=0.5, centre=1.0),
        }
        return {**inputs, "bias": drawn(f"{key}/bias", "width", width)} if bias else inputs

    population = ("population_variance",)
    yield case("layer_norm", "layer_norm", "value", "With a bias.", norm("norm/a"), population)
    yield case("layer_norm_scale", "layer_norm", "value", "Without a bias.", norm("norm/b", False), population)
    yield case("layer_norm_epsilon", "layer_norm", "value", "A large epsilon.", norm("norm/c"), epsilon=0.5)
    flat = {**norm("norm/d"), "x": tensor(np.full((1, 2, 6), 0.75), "images tokens width")}
    yield case("layer_norm_constant", "layer_norm", "degenerate", "A constant row becomes the bias.", flat)
    yield case(
        "layer_norm_gradient", "layer_norm", "gradient", "By input, scale and bias.", norm("norm/e"), (), "normalised"
    )

    def heads(key: str, queries: int, keys: int, **options: float) -> dict[str, Tensor]:
        axes = "images tokens heads dim"
        lengths = {"query": queries, "key": keys, "value": keys}
        return {name: drawn(f"{key}/{name}", axes, 2, length, 2, 4, **options) for name, length in lengths.items()}

    yield case(
        "attention",
        "attention",
        "value",
        "Self-attention: the root of dim, softmax over keys.",
        heads("attention/a", 5, 5),
    )
    yield case(
        "attention_pool", "attention", "value", "One query, as in attention pooling.", heads("attention/b", 1, 5)
    )
    yield case(
        "attention_large",
        "attention",
        "value",
        "Large products.",
        heads("attention/c", 3, 3, reach=8.0),
        ("large_logits",),
    )
    yield case("attention_one", "attention", "degenerate", "One key: its value.", heads("attention/d", 2, 1))
    yield case(
        "attention_gradient",
        "attention",
        "gradient",
        "By query, key and value.",
        heads("attention/e", 3, 3),
        (),
        "attended",
    )

    def patches(key: str, height: int, width: int, patch: int, channels: int) -> dict[str, Tensor]:
        return {
            "images": drawn(f"{key}/images", "images height width channels", 2, height, width, channels),
            "kernel": drawn(f"{key}/kernel", "patch patch channels width", patch, patch, channels, 4, reach=1.0),
            "bias": drawn(f"{key}/bias", "width", 4),
        }

    yield case(
        "patch_embed",
        "patch_embed",
        "value",
        "Patches row by row; not a square, so that an exchange shows.",
        patches("patch/a", 4, 6, 2, 3),
        ("patch_order",),
    )
    yield case(
        "patch_embed_pixels", "patch_embed", "degenerate", "Patches of one pixel.", patches("patch/b", 2, 3, 1, 2)
    )
    yield case(
        "patch_embed_gradient",
        "patch_embed",
        "gradient",
        "By images, kernel and bias.",
        patches("patch/c", 4, 4, 2, 1),
        (),
        "patches",
    )

    probabilities = tensor(np.array([[1, 0, 0, 0], [0.5, 0.25, 0.25, 0], [0, 0, 1, 0], [0.25] * 4]), "rows classes")
    several = tensor(np.array([[1, 1, 0, 0], [0, 0, 0, 0], [0, 1, 1, 1], [0.5, 0.25, 0.75, 0]]), "rows classes")
    for stage, targets in (("softmax_cross_entropy", probabilities), ("sigmoid_cross_entropy", several)):
        logits = drawn(f"{stage}/a", "rows classes", 4, 4)
        extreme = drawn(f"{stage}/b", "rows classes", 4, 4, reach=120.0, step=8.0)
        yield case(stage, stage, "value", "One number a row.", {"logits": logits, "targets": targets})
        yield case(
            f"{stage}_large",
            stage,
            "value",
            "Logits that overflow.",
            {"logits": extreme, "targets": targets},
            ("large_logits",),
        )
        yield case(
            f"{stage}_gradient",
            stage,
            "gradient",
            "By logits and targets.",
            {"logits": logits, "targets": targets},
            (),
            "loss",
        )

    arrays = {
        "x": drawn("arrays/x", "batch sequence width", 2, 3, 4),
        "y": drawn("arrays/y", "width heads dim", 4, 2, 2),
    }
    yield case("arrays", "arrays", "value", "The array operations that models are written with.", arrays)


def _faults() -> Iterator[Definition]:
    def drawn(axes: str, *shape: int) -> Tensor:
        return tensor(grid(f"negative/network/{axes}", shape), axes)

    def faults(
        stage: str, inputs: Mapping[str, Tensor], config: Mapping[str, Any], *any_rank: str
    ) -> Iterator[Definition]:
        for argument in inputs:
            without = "rank" if argument in any_rank else ""
            yield from array_faults("network", stage, argument, inputs, config, f"{stage}_{argument}_", without)

    x = {"x": drawn("rows width", 1, 3)}
    yield from faults("gelu", x, {"form": "tanh"}, "x")
    yield option("network", "gelu", "gelu_form", "form", x, {"form": "tanh"}, form="relu")
    norm = {"x": drawn("images tokens width", 1, 2, 3), "scale": drawn("width", 3), "bias": drawn("width", 3)}
    yield from faults("layer_norm", norm, {"epsilon": 0.5}, "x")
    yield from size_faults("network", "layer_norm", norm, {"epsilon": 0.5}, "layer_norm_", scale=0, bias=0)
    yield option("network", "layer_norm", "epsilon", "epsilon", norm, {"epsilon": 0.5}, epsilon=0.0)
    heads = {name: drawn("images tokens heads dim", 1, 2, 2, 2) for name in ("query", "key", "value")}
    yield from faults("attention", heads, {})
    yield from size_faults("network", "attention", heads, {}, "attention_heads_", key=2)
    yield from size_faults("network", "attention", heads, {}, "attention_dim_", key=3, value=3)
    patches = {
        "images": drawn("images height width channels", 1, 2, 2, 2),
        "kernel": drawn("patch patch channels width", 2, 2, 2, 2),
        "bias": drawn("width", 2),
    }
    yield from faults("patch_embed", patches, {})
    yield from size_faults("network", "patch_embed", patches, {}, "patch_embed_", images=1, kernel=1, bias=0)
    yield from size_faults("network", "patch_embed", patches, {}, "patch_embed_channels_", kernel=2)
    classes = {name: drawn("rows classes", 1, 3) for name in ("logits", "targets")}
    for stage in ("softmax_cross_entropy", "sigmoid_cross_entropy"):
        yield from faults(stage, classes, {}, "logits", "targets")
        yield from size_faults("network", stage, classes, {}, f"{stage}_", targets=1)
