"""Image choice against section 2 of Daxberger et al. 2023: k experts for a whole image, with the weights of its softmax."""

import numpy as np
import pytest
from hypothesis import strategies as st
from properties import holds
from strategies import one_of, seeds

from moespec.models.vit import VitConfig, regrouped, router_config
from moespec.spec import ConfigError

IMAGES, EACH, WIDTH, EXPERTS = 3, 4, 2, 3


def routing(B, kernel, x, choices, pool):
    router = B.ROUTERS["image_choice"]
    sizes = {"width": WIDTH, "experts": EXPERTS, "tokens": IMAGES * EACH, "images": IMAGES}
    return router.route({"kernel": kernel}, x, router.options(**sizes, choices=choices, pool=pool)).routing


@holds(wrong="class_token_always", seed=seeds, choices=st.integers(1, EXPERTS), pool=one_of("mean", "first"))
def test_the_words_of_the_paper(B, seed, choices, pool):
    random = np.random.default_rng(seed)
    x, kernel = random.normal(size=(2, IMAGES, EACH, WIDTH)), random.normal(size=(WIDTH, EXPERTS))
    tokens = x.reshape(2, IMAGES * EACH, WIDTH)
    dispatch, combine = B.run(routing, kernel=kernel, x=tokens, choices=choices, pool=pool)
    sent, weights = (part.sum(axis=3).reshape(2, IMAGES, EACH, EXPERTS) for part in (dispatch, combine))
    for group in range(2):
        for image in range(IMAGES):
            seen = x[group, image].mean(axis=0) if pool == "mean" else x[group, image, 0]
            powers = np.exp(seen @ kernel)
            gate = powers / powers.sum()
            gate[np.argsort(-gate)[choices:]] = 0
            for token in range(EACH):
                np.testing.assert_allclose(weights[group, image, token], gate, rtol=1e-9, atol=1e-15)
                np.testing.assert_array_equal(sent[group, image, token], gate > 0)


def test_a_model_says_how_many_images_are_in_a_group():
    sizes = {"width": 8, "depth": 2, "hidden": 8, "heads": 1, "moe": "last_2", "router": "image_choice", "experts": 4}
    config = VitConfig(**sizes, group_images=2)
    assert router_config(config).images == 2
    assert router_config(regrouped(config, 1)).images == 1
    with pytest.raises(ConfigError, match=r"group_tokens=98: image_choice needs whole images; expected a multiple of"):
        VitConfig(**sizes, group_tokens=98)
