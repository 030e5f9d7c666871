"""The logits of a cosine router as angles, and its parameters at the start."""

import numpy as np
from properties import holds
from strategies import one_of, seeds

from moespec.spec import ROUTERS, cosine_logits

D, P, E = 5, 3, 4


@holds(wrong="tokens_of_a_cosine_as_they_are",
       temperature=one_of(-1.0, 0.5, 6.0), seed=seeds)  # fmt: skip
def test_logits_are_cosines_by_the_temperature(B, temperature, seed):
    """The cosine of the angle, from the lengths of the sides of a triangle."""
    random = np.random.default_rng(seed)
    tokens, projection, embeddings = (random.normal(size=shape) for shape in ((2, 6, D), (D, P), (P, E)))
    offset = random.normal(size=P)
    found = B.cosine_logits(tokens, projection, embeddings, np.asarray(temperature), offset)
    a, b = (tokens @ projection + offset)[:, :, None], embeddings.T
    sides = [np.linalg.norm(side, axis=-1) for side in (a, b, a - b)]
    cosines = (sides[0] ** 2 + sides[1] ** 2 - sides[2] ** 2) / (2 * sides[0] * sides[1])
    np.testing.assert_allclose(found, cosines * min(np.exp(temperature), 100), rtol=1e-9, atol=1e-9)


def test_both_forms_start_with_the_same_logits():
    random, found = np.random.default_rng(0), []
    router, tokens = ROUTERS["cosine_token_choice"], random.normal(size=(6, D))
    for form in ("log_scale", "divide"):
        options = router.options(width=D, experts=E, tokens=6, dimensions=P, temperature_form=form)
        params = router.init(np.random.default_rng(1), options)
        found.append(cosine_logits(tokens, **params, form=form))
    np.testing.assert_allclose(*found, rtol=1e-6)
