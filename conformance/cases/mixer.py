"""Cases of the MLP-Mixer."""

from collections.abc import Iterator, Mapping
from typing import Any

from moespec.conformance.author.definition import Definition, composed, tensor
from moespec.conformance.author.models import inputs_of, stage_of
from moespec.models.random_keys import of_step

MIXER = {
    **{"image_size": 4, "patch_size": 2, "channels": 1, "classes": 2},
    **{"width": 5, "depth": 2, "token_hidden": 3, "hidden": 6},
}
SQUARE = {**MIXER, "width": 4, "token_hidden": 3, "hidden": 3, "depth": 1}
"""Patches and channels are equal in number, and the MLPs are equal in size, so swapping the axes changes no shape."""


def cases() -> Iterator[Definition]:

    def case(name: str, kind: str, purpose: str, model: Mapping[str, Any], *flags: str) -> Definition:
        inputs = inputs_of("mixer", model, f"mixer/{name}/0")
        stages = (stage_of("mixer_forward", inputs, model=dict(model)),)
        # The final norm cancels the `token_mlp/b2` of the last block, so the gradient of this bias is 0 and has no scale.
        by = tuple(name for name in inputs if not name.endswith("token_mlp/b2"))
        flags = ("model", "mixed_axis", *flags)
        return composed("mixer", name, kind, purpose, *flags, inputs=inputs, stages=stages, of="forward/logits", by=by)

    yield case("values", "value", "Logits and features of two blocks.", MIXER, "generated_code")
    yield case("square", "value", "As many patches as channels: exchanged axes keep every shape.", SQUARE)
    yield case("erf", "value", "The exact form of GELU.", {**SQUARE, "gelu": "erf"}, "gelu_form")
    yield case("one_patch", "degenerate", "One patch.", {**SQUARE, "patch_size": 4}, "degenerate_size")
    dropped = {**SQUARE, "depth": 2, "dropout": 0.25, "stochastic_depth": 0.5}
    inputs = inputs_of("mixer", dropped, "mixer/dropped/0", 3)
    inputs["random"] = tensor(of_step(3, seed=5, step=7), "images words")
    stages = (stage_of("mixer_forward", inputs, model=dropped, train=True),)
    purpose = "Dropout and stochastic depth, in training."
    yield composed("mixer", "dropped", "value", purpose, "model", inputs=inputs, stages=stages)
    yield case("gradient", "gradient", "By images and parameters.", SQUARE)
