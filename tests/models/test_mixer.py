"""The MLP-Mixer: counts and initial values. That it is the Mixer of its authors, tests/training/interop/test_interop.py checks."""

import numpy as np
import pytest

from moespec.models import mixer
from moespec.models.pytrees import flatten


@pytest.mark.parametrize(
    ("name", "no_head", "imagenet"),
    [
        ("mixer_s16", 18_015_264, 18_528_264),
        ("mixer_b16", 59_111_472, 59_880_472),
        ("mixer_l16", 207_171_168, 208_196_168),
    ],
)
def test_counts(name, no_head, imagenet):
    """The models have 1000 classes. `jax.eval_shape` of google-research/vision_transformer's `MlpMixer` counts as many parameters."""
    assert mixer.parameter_count(mixer.named(name, classes=0)) == no_head
    assert mixer.parameter_count(mixer.named(name)) == imagenet


def test_initial_values():
    params = flatten(mixer.init(mixer.named("mixer_s16", depth=1)))
    assert params["blocks/0/token_mlp/w1"].std() == pytest.approx(196**-0.5, rel=0.02)
    assert params["blocks/0/token_mlp/w2"].std() == pytest.approx(256**-0.5, rel=0.02)
    assert params["blocks/0/channel_mlp/w1"].std() == pytest.approx(512**-0.5, rel=0.02)
    assert not params["blocks/0/channel_mlp/b1"].any()
    assert not params["head/kernel"].any()
    assert {value.dtype for value in params.values()} == {np.dtype(np.float32)}
