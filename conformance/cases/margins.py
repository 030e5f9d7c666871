"""Tokens drawn again and again until the choices of a router are far from ties, one group at a time."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moespec.conformance.draw import grid
from moespec.conformance.format import Tensor
from moespec.conformance.program import Config, Values
from moespec.conformance.programs import PROGRAMS
from moespec.conformance.reference import SPEC

__all__ = ["Noise", "clear_tokens"]

TRIES = 150
ENOUGH = 0.12
"""Neighbours that differ by 12 % of their sum stay apart in bfloat16 in most cases."""


class Noise(NamedTuple):
    """How noise is drawn: its axes after the groups, and its grid."""

    axes: str
    reach: float
    step: float
    centre: float = 0.0


def clear_tokens(
    router: str,
    key: str,
    config: Config,
    parameters: Mapping[str, Tensor],
    *,
    noise: Noise | None = None,
    reach: float = 2.0,
    tries: int = TRIES,
    enough: float = ENOUGH,
    accept: Callable[[Values], bool] = lambda scores: True,
) -> tuple[NDArray[np.float32], Any]:
    """Tokens and, if asked for, noise of one group, with the largest margin among some draws, or the first that is large enough.

    config, parameters: of the router, as its cases have them. accept: of the scores of a draw, whether to take it.
    """
    choice = PROGRAMS[router]["route"].choice
    if choice is None or isinstance(choice.scores, str):
        raise ValueError(f"{router} selects nothing")
    sizes: Any = config["router"]
    given: Values = {name: value.array.astype(np.float64) for name, value in parameters.items()}
    best, found = -1.0, None
    for attempt in range(tries if any(value.any() for value in given.values()) else 1):
        tokens = grid(f"{key}/{attempt}", (sizes["tokens"], sizes["width"]), reach=reach, step=0.25)
        values, drawn = {**given, "tokens": tokens.astype(np.float64)}, None
        if noise:
            axes, reached, step, centre = noise
            shape = tuple(sizes[axis] for axis in axes.split())
            drawn = grid(f"{key}/{attempt}/noise", shape, reach=reached, step=step, centre=centre)
            values["noise"] = drawn.astype(np.float64)
        scores = choice.scores(SPEC, config, values)
        if not accept(scores):
            continue
        margin = choice.margin(config, scores, {name: np.abs(value) for name, value in scores.items()})
        if margin > best:
            best, found = margin, (tokens, drawn)
        if margin >= enough:
            break
    if found is None:
        raise ValueError(f"{key}: no draw is accepted")
    return found
