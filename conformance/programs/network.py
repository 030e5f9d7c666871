"""Stages of the operations around the routers, and of the array operations that models are written with.

`1 + tanh` and `1 + erf` cancel far out on the left, and a cross-entropy near 0 is a difference of large numbers: their
scales are the same computation on absolute values.
"""

from typing import Any

import numpy as np

from moespec.conformance.program import Config, Output, Stage, Values
from moespec.spec.numerics import softmax

__all__ = ["STAGES"]


def _layer_norm(B: Any, config: Config, v: Values) -> Values:
    return {"normalised": B.layer_norm(v["x"], v["scale"], v.get("bias"), **config)}


def _gelu_scale(config: Config, v: Values) -> Any:
    return np.abs(v["x"])


def _softmax_scale(config: Config, v: Values) -> Any:
    size = np.abs(v["logits"]).max(axis=-1, keepdims=True) + np.log(v["logits"].shape[-1])
    return np.sum(v["targets"] * (size + np.abs(v["logits"])), axis=-1)


def _sigmoid_scale(config: Config, v: Values) -> Any:
    return np.sum(np.abs(v["logits"]) * (1 + v["targets"]) + np.log(2), axis=-1)


def _attention_scale(config: Config, v: Values) -> Any:
    query, key, value = (v[name] for name in ("query", "key", "value"))
    root = np.sqrt(query.shape[-1])
    p = softmax(np.einsum("qhd,khd->hqk", query, key) / root)
    size = np.einsum("qhd,khd->hqk", np.abs(query), np.abs(key)) / root
    moved = p * (1 + size + (p * size).sum(axis=-1, keepdims=True))
    return np.einsum("hqk,khd->qhd", moved, np.abs(value))


def _arrays(B: Any, config: Config, v: Values) -> Values:
    x, y = v["x"], v["y"]
    return {
        "einsum": B.einsum("nsd,dhk->nshk", x, y),
        "concatenate": B.concatenate([x, x + x], 1),
        "broadcast_to": B.broadcast_to(x[:1], tuple(x.shape)),
        "transpose": B.transpose(x, (2, 0, 1)),
        "mean": B.mean(x, 1),
        "sum": B.sum(x, 1),
        "tanh": B.tanh(x),
        "softmax": B.softmax(x, 2),
    }


BSW = ("batch", "sequence", "width")
_ARRAYS = {
    "einsum": Output(("batch", "sequence", "heads", "dim")),
    "concatenate": Output(BSW),
    "broadcast_to": Output(BSW),
    "transpose": Output(("width", "batch", "sequence")),
    "mean": Output(("batch", "width")),
    "sum": Output(("batch", "width")),
    "tanh": Output(BSW),
    "softmax": Output(BSW),
}

STAGES: dict[str, tuple[Stage, ...]] = {
    "network": (
        Stage(
            "gelu",
            ("gelu",),
            ("x",),
            lambda B, config, v: {"y": B.gelu(v["x"], **config)},
            {"y": Output(("rows", "width"), scale="written", written=_gelu_scale)},
        ),
        Stage(
            "layer_norm",
            ("layer_norm",),
            ("x", "scale", "bias"),
            _layer_norm,
            {"normalised": Output(("images", "tokens", "width"))},
        ),
        Stage(
            "attention",
            ("attention",),
            ("query", "key", "value"),
            lambda B, config, v: {"attended": B.attention(v["query"], v["key"], v["value"])},
            {"attended": Output(("images", "tokens", "heads", "dim"), written=_attention_scale)},
        ),
        Stage(
            "patch_embed",
            ("patch_embed",),
            ("images", "kernel", "bias"),
            lambda B, config, v: {"patches": B.patch_embed(v["images"], v["kernel"], v["bias"])},
            {"patches": Output(("images", "tokens", "width"))},
        ),
        Stage(
            "softmax_cross_entropy",
            ("softmax_cross_entropy",),
            ("logits", "targets"),
            lambda B, config, v: {"loss": B.softmax_cross_entropy(v["logits"], v["targets"])},
            {"loss": Output(("rows",), scale="written", written=_softmax_scale)},
        ),
        Stage(
            "sigmoid_cross_entropy",
            ("sigmoid_cross_entropy",),
            ("logits", "targets"),
            lambda B, config, v: {"loss": B.sigmoid_cross_entropy(v["logits"], v["targets"])},
            {"loss": Output(("rows",), scale="written", written=_sigmoid_scale)},
        ),
        Stage("arrays", tuple(_ARRAYS), ("x", "y"), _arrays, _ARRAYS),
    ),
}
