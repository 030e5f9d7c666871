"""Cases of the operations around the routers and of the array operations that models use.

`1 + tanh(x)` and `1 + erf(x)` are differences of nearly equal numbers if x is very negative, and a cross-entropy near 0
is a difference of large numbers. The scale of such a result is therefore computed like the result, but on absolute values.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, single, tensor
from moespec.conformance.author.inputs import grid
from moespec.conformance.author.variant import Spec, Variant, fixed, scaled, variant
from moespec.conformance.format import Tensor

BSW, NORM = "batch sequence width", "images tokens width"

ROWS, HEADS, CLASSES = "rows width", "images tokens heads dim", "rows classes"
IMAGES, KERNEL = "images height width channels", "patch patch channels width"
case = partial(single, "network")


def cases() -> Iterator[Definition]:
    yield from _gelu()
    yield from _layer_norm()
    yield from _attention()
    yield from _patch_embed()
    yield from _cross_entropies()
    arrays: dict[str, Any] = {"x": drawn("arrays/x", BSW, 2, 3, 4), "y": drawn("arrays/y", "width heads dim", 4, 2, 2)}
    yield case("array_operations", "arrays", "value", "The array operations that models are written with.", **arrays)


def drawn(key: str, axes: str, *shape: int, **options: float) -> Tensor:
    """Draws an input of a case."""
    return tensor(grid(f"network/{key}", shape, **options), axes)


def _gelu() -> Iterator[Definition]:
    gelu, flag, wide = partial(case, "gelu"), "gelu_form", drawn("wide", ROWS, 4, 8, reach=6.0)
    narrow = drawn("gelu/gradient", ROWS, 2, 6)
    for form in ("tanh", "erf"):
        yield gelu(f"gelu_{form}", "value", f"The {form} form.", flag, x=wide, form=form)
        yield gelu(f"gelu_{form}_gradient", "gradient", f"Of the {form} form.", x=narrow, form=form)
    yield gelu("gelu_default", "value", "The tanh form is the default.", flag, x=wide)
    yield gelu("gelu_zero", "degenerate", "0 gives 0.", x=tensor(np.zeros((1, 2)), ROWS))


def _layer_norm() -> Iterator[Definition]:
    norm, population, width = partial(case, "layer_norm"), "population_variance", 6

    def inputs(key: str) -> dict[str, Tensor]:
        return {
            "x": drawn(f"norm/{key}/x", NORM, 2, 3, width),
            "scale": drawn(f"norm/{key}/scale", "width", width, reach=0.5, centre=1.0),
            "bias": drawn(f"norm/{key}/bias", "width", width),
        }

    yield norm("layer_norm", "value", "With a bias.", population, **inputs("a"))
    plain = {name: value for name, value in inputs("b").items() if name != "bias"}
    yield norm("layer_norm_scale", "value", "Without a bias.", population, **plain)
    yield norm("layer_norm_epsilon", "value", "A large epsilon.", **inputs("c"), epsilon=0.5)
    flat = {**inputs("d"), "x": tensor(np.full((1, 2, width), 0.75), NORM)}
    yield norm("layer_norm_constant", "degenerate", "A constant row becomes the bias.", **flat)
    yield norm("layer_norm_gradient", "gradient", "By input, scale and bias.", **inputs("e"))


def _attention() -> Iterator[Definition]:
    attention = partial(case, "attention")

    def heads(key: str, queries: int, keys: int, **options: float) -> dict[str, Tensor]:
        lengths = {"query": queries, "key": keys, "value": keys}
        return {n: drawn(f"attention/{key}/{n}", HEADS, 2, length, 2, 4, **options) for n, length in lengths.items()}

    purpose = "Self-attention: the root of dim, softmax over keys."
    yield attention("attention", "value", purpose, **heads("a", 5, 5))
    yield attention("attention_pool", "value", "One query, as in attention pooling.", **heads("b", 1, 5))
    yield attention("attention_large", "value", "Large products.", "large_logits", **heads("c", 3, 3, reach=8.0))
    yield attention("attention_gradient", "gradient", "By query, key and value.", **heads("e", 3, 3))
    causal, purpose = partial(attention, causal=True), "Each token sees those up to itself."
    yield causal("attention_causal", "value", purpose, **heads("f", 5, 5))
    yield causal("attention_causal_large", "value", "Large products.", "large_logits", **heads("g", 4, 4, reach=8.0))
    yield causal("attention_causal_one", "degenerate", "One token: its value.", **heads("h", 1, 1))
    yield causal("attention_causal_gradient", "gradient", "Of causal attention.", **heads("i", 3, 3))


def _patch_embed() -> Iterator[Definition]:
    embed = partial(case, "patch_embed")

    def patches(key: str, height: int, width: int, patch: int, channels: int) -> dict[str, Tensor]:
        return {
            "images": drawn(f"patch/{key}/images", IMAGES, 2, height, width, channels),
            "kernel": drawn(f"patch/{key}/kernel", KERNEL, patch, patch, channels, 4, reach=1.0),
            "bias": drawn(f"patch/{key}/bias", "width", 4),
        }

    purpose = "Patches row by row; not a square, so that an exchange shows."
    yield embed("patch_embed", "value", purpose, "patch_order", **patches("a", 4, 6, 2, 3))
    yield embed("patch_embed_pixels", "degenerate", "Patches of one pixel.", **patches("b", 2, 3, 1, 2))
    without = {name: tensor for name, tensor in patches("d", 4, 2, 2, 1).items() if name != "bias"}
    yield embed("patch_embed_without_bias", "value", "Patches without a bias.", **without)
    yield embed("patch_embed_gradient", "gradient", "By images, kernel and bias.", **patches("c", 4, 4, 2, 1))


def _cross_entropies() -> Iterator[Definition]:
    probabilities = tensor(np.array([[1, 0, 0, 0], [0.5, 0.25, 0.25, 0], [0, 0, 1, 0], [0.25] * 4]), CLASSES)
    several = tensor(np.array([[1, 1, 0, 0], [0, 0, 0, 0], [0, 1, 1, 1], [0.5, 0.25, 0.75, 0]]), CLASSES)
    for name, targets in (("softmax_cross_entropy", probabilities), ("sigmoid_cross_entropy", several)):
        loss, logits = partial(case, name), drawn(f"{name}/a", CLASSES, 4, 4)
        extreme = drawn(f"{name}/b", CLASSES, 4, 4, reach=120.0, step=8.0)
        yield loss(name, "value", "One number a row.", logits=logits, targets=targets)
        overflow = {"logits": extreme, "targets": targets}
        yield loss(f"{name}_large", "value", "Logits that overflow.", "large_logits", **overflow)
        yield loss(f"{name}_gradient", "gradient", "By logits and targets.", logits=logits, targets=targets)


def sigmoid_gelu(B: Spec, x: Array, *, form: str = "tanh") -> Array:
    """The GELU is x sigmoid(1.702 x)."""
    return x / (1 + np.exp(-1.702 * x))


def unbiased_layer_norm(B: Spec, x: Array, scale: Any, bias: Array | None = None, **options: Any) -> Array:
    """The layer norm uses the unbiased variance, divided by n - 1."""
    centred = B.layer_norm(x, scale, None, **options)
    width, shift = x.shape[-1], 0 if bias is None else bias
    epsilon = options.get("epsilon", 1e-6)
    spread = np.var(x.real, axis=-1, keepdims=True)
    return centred * np.sqrt((spread + epsilon) / (spread * width / max(width - 1, 1) + epsilon)) + shift


def patches_column_by_column(B: Spec, images: Array, kernel: Array, bias: Array) -> Array:
    """Patches are ordered column by column, not row by row."""
    return B.patch_embed(np.swapaxes(images, 1, 2), np.swapaxes(kernel, 0, 1), bias)


def exact_gelu_by_default(B: Spec, x: Array, **options: Any) -> Array:
    """By default, the GELU is the exact form with erf."""
    return B.gelu(x, **{"form": "erf", **options})


def epsilon_of_torch_by_default(B: Spec, x: Array, scale: Any, bias: Array | None = None, **options: Any) -> Array:
    """By default, the layer norm adds 1e-5 to the variance."""
    return B.layer_norm(x, scale, bias, **{"epsilon": 1e-5, **options})


def variants() -> Iterator[Variant]:
    computes = "The GELU is always the exact one with erf."
    yield fixed("exact_gelu", computes, "gelu", "LA-1b", form="erf")
    computes = "The GELU is always the tanh approximation."
    yield fixed("approximate_gelu", computes, "gelu", "LA-1b", form="tanh")
    yield variant(sigmoid_gelu, "gelu", ledger="LA-1b")
    yield variant(unbiased_layer_norm, "layer_norm", ledger="NW-1c")
    computes = "The layer norm always adds 1e-5 to the variance."
    yield fixed("epsilon_of_torch", computes, "layer_norm", "NW-1b", epsilon=1e-05)
    computes = "The products of attention are not divided by the root of their dimension."
    yield fixed("attention_not_scaled", computes, "attention", query=lambda query: query * np.sqrt(query.shape[-1]))
    yield fixed("attention_to_all", "A token of causal attention also sees later tokens.", "attention", causal=False)
    yield variant(patches_column_by_column, "patch_embed")
    computes = "The sigmoid cross-entropy is averaged over classes."
    yield scaled("sigmoid_averaged", computes, "NW-2b", sigmoid_cross_entropy=lambda logits, **_: 1 / logits.shape[-1])
    yield variant(exact_gelu_by_default, "gelu", ledger="LA-1b", who="torch")
    yield variant(epsilon_of_torch_by_default, "layer_norm", ledger="NW-1b", who="torch, jax")
