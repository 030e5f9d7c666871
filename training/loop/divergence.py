"""Runs that diverge: what became NaN or infinite first.

Training checks numbers only when it logs or saves them. If one is not finite, the steps since the last checkpoint are repeated,
which gives the same bits, and everything is checked after each step.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from moespec.backends.contract import Backend, Step
from moespec.backends.mesh import Pieces
from moespec.backends.optimizer import OptimizerConfig
from moespec.backends.optimizer_options import SLOTS
from moespec.models.errors import RunError
from moespec.models.pytrees import flatten
from moespec.training.configuration.config import Config
from moespec.training.configuration.schedules import Schedule
from moespec.training.loop.resolve import schedule

__all__ = ["diverged", "not_finite"]

MEASURES = ("loss", "grad_norm")
TREES = {"params": "the parameter", **{slot: f"{name} of" for slot, name in SLOTS.items()}}


def not_finite(metrics: dict[str, Any], exported: dict[str, Any]) -> str | None:
    """What of the loss, the norm of the gradient, and the exported state, if it is not empty, is not finite, in words, if any is."""
    wrong = (f"the {name} is {metrics[name]}" for name in MEASURES if not math.isfinite(metrics[name]))
    return next(wrong, None) or _not_finite(exported)


def diverged(
    B: Backend,
    config: Config,
    make_step: Callable[[OptimizerConfig], Step],
    make_batch: Callable[[int], Any],
    exported: dict[str, Any],
    *,
    last: int,
) -> RunError:
    """The error of a run that is not finite after `last` steps: what diverged first, and when.

    make_step: see `step_maker`. exported: the last state known to be finite.
    """
    rate, update = schedule(config), make_step(config.optimizer)
    state, first = B.import_state(exported, config.optimizer), exported["step"]
    for step in range(first, last):
        batch = make_batch(step)
        state, metrics = update(state, batch, rate(step))
        value, norm = (float(B.to_numpy(metrics[name])) for name in MEASURES)
        if not math.isfinite(value):
            return _error(f"the loss is {value}", step, rate, updates=step)
        if not math.isfinite(norm):
            # Clipping spreads it to all parameters; a step along the gradient alone tells whose it was.
            alone = OptimizerConfig("sgd", momentum=0.0, rates=config.optimizer.rates)
            moved, _ = make_step(alone)(B.init_state(B.from_numpy(exported["params"]), alone), batch, 1.0)
            params = flatten(B.export_state(moved)["params"])
            names = [name for name, value in params.items() if not np.isfinite(value).all()]
            whose = f"the gradient of {names[0]}" if names else "the norm of the gradient"
            return _error(f"{whose} is not finite (the loss is {value:.4g})", step, rate, updates=step)
        exported = B.export_state(state)
        if (what := _not_finite(exported)) is not None:
            return _error(what, step, rate, updates=step + 1)
    return RunError(f"training diverged between step {first + 1} and {last}, but not when these were done once more")


def _error(found: str, step: int, rate: Schedule, *, updates: int) -> RunError:
    """A smaller rate is advised only if one of the `updates` before, which may have led to it, had a rate above 0."""
    advice = "; a smaller schedule.peak may help" if any(rate(index) > 0 for index in range(updates)) else ""
    return RunError(f"training diverged at step {step + 1}: {found}{advice}")


def _not_finite(exported: dict[str, Any]) -> str | None:
    """The first parameter, or moment of one, with NaN or infinity, in words; None if there is none."""
    for tree, kind in TREES.items():
        for name, value in flatten(exported.get(tree, {})).items():
            for part in [piece for _, piece in value.pieces] if isinstance(value, Pieces) else [value]:
                if not np.isfinite(part).all():
                    return f"{kind} {name} has {'NaN' if np.isnan(part).any() else 'infinity'}"
    return None
