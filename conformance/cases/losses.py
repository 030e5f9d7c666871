"""Cases of the auxiliary losses."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from moespec.conformance.cases.definition import Definition, both, groups_tokens
from moespec.conformance.cases.faults import SHAPE, SMALL, array_faults, fault, option, size_faults
from moespec.conformance.cases.inputs import logits, utilities
from moespec.conformance.format import Tensor

__all__ = ["cases"]

G, T, E = 2, 6, 3


def cases() -> Iterator[Definition]:
    """All cases of this module."""
    yield from _of_scores("importance_loss")
    yield from _of_scores("balance_loss")
    yield from _load()
    yield from _z()
    yield from _faults()


def _of_scores(algorithm: str) -> Iterator[Definition]:
    def case(name: str, kind: str, purpose: str, values: Tensor, *flags: str) -> Definition:
        gradient = ("loss", ("scores",)) if kind == "gradient" else None
        return Definition(algorithm, name, kind, purpose, {"scores": values}, flags=flags, gradient=gradient)

    population = "population_variance" if algorithm == "importance_loss" else "first_maximum"
    yield case(
        "values",
        "value",
        "Softmax scores, two groups: the mean of their losses.",
        utilities(f"{algorithm}/a"),
        population,
    )
    yield case("four_experts", "value", "Four experts.", utilities(f"{algorithm}/b", (G, 8, 4)), population)
    yield case("collapsed", "value", "One expert takes everything.", both(np.eye(E)[np.zeros(T, int)]))
    yield case(
        "uniform",
        "tie",
        "Uniform scores; equal maxima count for the first expert.",
        groups_tokens(np.full((G, 8, 4), 0.25)),
        population,
    )
    tied = np.array(
        [
            [0.375, 0.375, 0.25],
            [0.25, 0.375, 0.375],
            [0.5, 0.0, 0.5],
            [0.25, 0.5, 0.25],
            [0.125, 0.75, 0.125],
            [0.25, 0.375, 0.375],
        ]
    )
    yield case("tied", "tie", "Two maxima in a row.", both(tied), population)
    yield case("one_expert", "degenerate", "One expert.", groups_tokens(np.ones((G, T, 1))), "degenerate_size")
    yield case("one_token", "degenerate", "One token.", utilities(f"{algorithm}/c", (1, 1, E)), "degenerate_size")
    yield case("gradient", "gradient", "By the scores.", utilities(f"{algorithm}/d"), "stop_gradient")


def _load() -> Iterator[Definition]:
    def case(name: str, kind: str, purpose: str, clean: Tensor, noisy: Any, *flags: str, **config: Any) -> Definition:
        inputs = {"logits": clean, "noisy_logits": groups_tokens(noisy)}
        gradient = ("loss", ("logits", "noisy_logits")) if kind == "gradient" else None
        config = {"choices": 1, "noise_std": 0.25, **config}
        return Definition("load_loss", name, kind, purpose, inputs, config, flags=flags, gradient=gradient)

    def drawn(name: str, kind: str, purpose: str, shape: tuple[int, ...], *flags: str, **config: Any) -> Definition:
        clean = logits(f"load/{name}", shape, reach=1.0)
        noise = logits(f"load/{name}/noise", shape, 0.5, 0.0625).array + np.arange(shape[2]) / 64  # no ties in a row
        return case(name, kind, purpose, clean, clean.array + noise, *flags, **config)

    own = "threshold_includes_self"
    yield drawn("one_choice", "value", "The threshold is the largest noisy logit.", (G, T, E), own)
    yield drawn("two_choices", "value", "The threshold is the second largest.", (G, T, E), own, choices=2)
    yield drawn("wide_noise", "value", "A larger standard deviation.", (G, T, E), own, noise_std=0.75)
    yield drawn("all_choices", "degenerate", "All experts are chosen.", (G, T, E), own, choices=3)
    level = groups_tokens(np.zeros((G, 8, 4)))
    yield case("equal", "tie", "Equal logits: every expert passes with probability one half.", level, level.array)
    yield drawn("one_token", "degenerate", "One token.", (1, 1, E), own)
    yield drawn(
        "gradient",
        "gradient",
        "By the clean logits and, through the threshold, by the noisy ones.",
        (G, T, E),
        choices=2,
    )


def _z() -> Iterator[Definition]:
    def case(name: str, kind: str, purpose: str, values: Tensor, *flags: str) -> Definition:
        gradient = ("loss", ("logits",)) if kind == "gradient" else None
        return Definition("z_loss", name, kind, purpose, {"logits": values}, flags=flags, gradient=gradient)

    yield case("values", "value", "Moderate logits.", logits("z/a"))
    yield case(
        "large",
        "value",
        "Logits whose exponential overflows float32.",
        logits("z/b", reach=200.0, step=4.0),
        "large_logits",
    )
    yield case("equal", "tie", "Equal logits: the square of log E.", groups_tokens(np.zeros((G, T, E))))
    yield case(
        "one_expert",
        "degenerate",
        "One expert: the mean square of the logits.",
        logits("z/c", (G, T, 1)),
        "degenerate_size",
    )
    yield case("gradient", "gradient", "By the logits.", logits("z/d"))


def _faults() -> Iterator[Definition]:
    scores = {"scores": utilities("negative/losses", SHAPE)}
    for algorithm in ("importance_loss", "balance_loss"):
        yield from array_faults(algorithm, "loss", "scores", scores, {})
    nobody = {"scores": groups_tokens(np.zeros(SHAPE))}
    purpose = "Scores of 0 have no coefficient of variation."
    yield fault(
        "importance_loss", "loss", "no_mass", "ContractError", "scores", scores, {}, wrong_inputs=nobody,
        purpose=purpose,
    )  # fmt: skip
    given = {"logits": logits("negative/logits", SHAPE)}
    pair, config = {**given, "noisy_logits": logits("negative/noisy", SHAPE)}, {"choices": 1, "noise_std": 0.25}
    yield from array_faults("load_loss", "loss", "logits", pair, config)
    yield from array_faults("load_loss", "loss", "noisy_logits", pair, config, "noisy_")
    yield from size_faults("load_loss", "loss", pair, config, noisy_logits=1)
    yield option("load_loss", "loss", "many_choices", "choices", pair, config, choices=SMALL.experts + 1)
    yield option("load_loss", "loss", "noise_std", "noise_std", pair, config, noise_std=0.0)
    yield from array_faults("z_loss", "loss", "logits", given, {})
