"""Cases of LIMoE's entropies. With a threshold, the global loss is threshold - entropy, so the error scales of both are added."""

from collections.abc import Iterator

import numpy as np

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, single
from moespec.conformance.author.inputs import groups_tokens, utilities
from moespec.conformance.author.variant import Spec, Variant, fixed, one_group, variant
from moespec.conformance.format import Tensor


def cases() -> Iterator[Definition]:

    def both(name: str, kind: str, purpose: str, scores: Tensor, *flags: str) -> Iterator[Definition]:
        for part in ("local", "global"):
            yield single("limoe", f"{part}_entropy_loss", f"{part}_{name}", kind, purpose, *flags, scores=scores)

    def limited(name: str, kind: str, purpose: str, threshold: float) -> Definition:
        scores = utilities(f"limoe/{name}")
        return single("limoe", "global_entropy_loss", name, kind, purpose, scores=scores, threshold=threshold)

    yield from both("values", "value", "Two groups: the mean of their losses.", utilities("limoe/values"))
    certain = groups_tokens(np.eye(3)[[0, 1, 1, 0]])
    purpose = "Scores of 0 and 1, with an expert that none has."
    yield from both("certain", "degenerate", purpose, certain, "zero_score_slots")
    yield from both("one_token", "degenerate", "One token.", utilities("limoe/one", (1, 1, 3)), "degenerate_size")
    yield from both("gradient", "gradient", "By the scores.", utilities("limoe/gradient"))
    yield limited("threshold", "value", "A threshold that neither group reaches.", 1.5)
    yield limited("threshold_reached", "degenerate", "A threshold that both groups reach.", 0.25)
    yield limited("threshold_gradient", "gradient", "Below the threshold.", 1.5)


def epsilon_in_the_logarithm(B: Spec, scores: Array) -> Array:
    """The local entropy takes the logarithm of scores with 1e-8 added."""
    return -np.mean(np.sum(scores * np.log(scores + 1e-8), axis=2))


def global_entropy_itself(B: Spec, scores: Array) -> Array:
    """The global loss is the entropy of the mean, not its negative."""
    return -B.global_entropy_loss(scores)


def variants() -> Iterator[Variant]:
    yield variant(epsilon_in_the_logarithm, "local_entropy_loss", ledger="LI-2b")
    computes = "The global entropy is the entropy of the mean over the tokens of all groups."
    yield fixed("global_entropy_of_all_groups", computes, "global_entropy_loss", "LI-1b", scores=one_group)
    yield variant(global_entropy_itself, "global_entropy_loss", ledger="LI-4b")
