"""Hooks do the work of a run after each step. A hook is a function that is called with an `AfterStep`, the current state of the run.

    def hook(after: AfterStep) -> None:
        if after.logs and after.B.process == 0:
            print(after.done, after.metrics["loss"], after.evaluations)

`train` calls the hooks in this order: Stop, Finite, the log, `Evaluate`, the caller's hooks and the `--log` hooks, saving, `Stop.end`. So:

- Logged, evaluated and saved values are finite.
- Hooks see a step before it is saved. A run that resumes after a kill calls the hooks again for repeated steps.
- A signal can leave evaluations pending (`after.pending`). The resumed run runs these evaluations, then calls the hooks once more for the
  last step, without metrics (`after.logs` is false).
- An error in a hook ends the run, unless the hook is a `--log` hook.
- On several devices, each process calls all hooks, but only process 0 calls `--log` hooks.

A hook must not change anything that a step depends on. `signal.raise_signal(signal.SIGTERM)` in a hook ends the run
after the next step (with several processes, the next logged step). The run saves this step.
"""

import math
import os
import shlex
import signal
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from moespec.backends.contract import Backend, Step
from moespec.backends.mesh import Shards
from moespec.backends.optimizer import OptimizerConfig
from moespec.backends.optimizer_options import SLOTS
from moespec.models.errors import Interrupted, RunError
from moespec.models.pytrees import flatten
from moespec.training.configuration.config import Config
from moespec.training.configuration.configfile import flat
from moespec.training.configuration.length import before_cooldown
from moespec.training.configuration.own import is_option
from moespec.training.configuration.schedules import Schedule
from moespec.training.evaluation.metrics import unflatten
from moespec.training.interruption import Interruption
from moespec.training.loop.best import Best, ended
from moespec.training.loop.checkpoint import Saver
from moespec.training.loop.resolve import schedule

__all__ = ["AfterStep", "Finite", "Hook", "Stop"]

MEASURES = ("loss", "grad_norm")
TREES = {"params": "the parameter", **{slot: f"{name} of" for slot, name in SLOTS.items()}}


@dataclass(eq=False)
class AfterStep:
    """The state of a run after a step, for hooks. Arrays of the backend are valid until the next step."""

    B: Backend
    config: Config
    state: Any
    """the state of the run: its parameters are `B.state_params(after.state)`"""
    done: int
    """number of finished steps, including this one"""
    rate: float = 0.0
    """learning rate of the step"""
    measured: Mapping[str, Any] = field(default_factory=dict)
    """metrics of the step, as arrays of the backend"""
    pending: list[str | None] = field(default_factory=list)
    """evaluations still to do after this step; None stands for the run's own images"""
    evaluations: dict[str, dict[str, Any]] = field(default_factory=dict)
    """results of the finished evaluations, by the "kind" of the evaluation's line in metrics.jsonl"""
    logged: Mapping[str, Any] = field(default_factory=dict)
    """the "train" line of metrics.jsonl for this step, on process 0; empty if there is none"""
    stopped_by: signal.Signals | None = None
    """the signal that makes this step the last"""
    unread: bool = False
    """whether this step is the last because the next step's images cannot be read"""
    best: Best | None = None
    """with `training.keep_best`: the best evaluation so far"""

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """The metrics of the step as nested dicts of numbers and lists. Waits until the step has finished."""
        return unflatten(self.B.to_numpy(self.measured))

    @cached_property
    def exported(self) -> dict[str, Any]:
        """The state in the form that a checkpoint stores: NumPy arrays on one device, the shards of this process on several devices."""
        return self.B.export_state(self.state)

    def every(self, steps: int) -> bool:
        """Whether the number of finished steps is a multiple of `steps`, or the run is complete."""
        return self.done % steps == 0 or self.done == self.config.training.total

    @property
    def logs(self) -> bool:
        """Whether the metrics of this step are logged."""
        return bool(self.measured) and self.every(self.config.training.log_every)

    @property
    def saves(self) -> bool:
        """Whether the state is saved after this step."""
        scheduled = self.every(self.config.training.checkpoint_every) or self.done == before_cooldown(self.config)
        best = self.best is not None and (self.best.step == self.done or ended(self.config, self.best))
        return scheduled or best or self.stopped_by is not None or self.unread


Hook = Callable[[AfterStep], None]


class Stop:
    """Stops the run on a signal. Runs first, so that later hooks know the signal on which the processes agree. `end` is called last."""

    def __init__(self, interruption: Interruption, saver: Saver, run: Path) -> None:
        self._interruption, self._saver, self._run = interruption, saver, run

    def __call__(self, after: AfterStep) -> None:
        after.stopped_by = self._interruption.agreed(after.B, after.logs)

    def end(self, after: AfterStep) -> None:
        """Raises Interrupted, once the step is saved, if a signal has arrived."""
        if after.stopped_by is None:
            return
        self._saver.wait()
        processes = os.environ.get("MOESPEC_LAUNCHED")
        launch = f"launch -n {processes} " if processes else ""
        named = "".join(f" --{option} {shlex.quote(value)}" for option, value in after.config.functions.items())
        if own := {value for name, value in flat(asdict(after.config)).items() if is_option(name, value)}:
            named += f" --trust {','.join(sorted(own))}"
        command = f"moespec {launch}train --run {shlex.quote(str(self._run))} --resume{named}"
        done = f"{after.done} of {after.config.training.total} steps are done and saved. To resume: {command}"
        raise Interrupted(f"stopped by {after.stopped_by.name}; {done}", after.stopped_by)


@dataclass(frozen=True)
class Finite:
    """Ends a run that diverges. Values are checked only at steps that are logged, evaluated or saved.

    To find the first value that is not finite, a run on one device repeats the steps since the last checkpoint and checks each step.
    """

    explain: Callable[[int], RunError]
    """maps the number of finished steps to the error of a run that diverged within these steps"""

    def __call__(self, after: AfterStep) -> None:
        if not (after.logs or after.saves or after.pending):
            return
        # The state is copied to the host only if it is saved or not finite.
        looked_at = after.saves or (after.pending and not after.B.finite_state(after.state))
        exported, metrics = after.exported if looked_at else {}, after.metrics
        measured = (f"the {name} is {metrics[name]}" for name in MEASURES if not math.isfinite(metrics[name]))
        wrong = next(measured, None) or _not_finite(exported)
        if after.B.sizes.devices == 1 and wrong:
            raise self.explain(after.done)
        if after.B.sizes.devices > 1 and (texts := list(filter(None, after.B.exchanged(wrong or "")))):
            raise RunError(f"training diverged by step {after.done}: {texts[0]}")  # repeats no steps


def diverged(
    B: Backend,
    config: Config,
    make_step: Callable[[OptimizerConfig], Step],
    make_batch: Callable[[int], Any],
    exported: dict[str, Any],
    *,
    last: int,
) -> RunError:
    """Returns the error for a run that diverged within `last` steps. The error names the first value that is not finite, and its step.

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
            # Clipping spreads NaN to all parameters. An SGD step without clipping shows which gradient is not finite.
            alone = OptimizerConfig("sgd", momentum=0.0, rates=config.optimizer.rates)
            moved, _ = make_step(alone)(B.init_state(B.from_numpy(exported["params"]), alone), batch, 1.0)
            params = flatten(B.export_state(moved)["params"])
            names = [name for name, value in params.items() if not np.isfinite(value).all()]
            whose = f"the gradient of {names[0]}" if names else "the norm of the gradient"
            return _error(f"{whose} is not finite (the loss is {value:.4g})", step, rate, updates=step)
        exported = B.export_state(state)
        if (what := _not_finite(exported)) is not None:
            return _error(what, step, rate, updates=step + 1)
    return RunError(f"training diverged between steps {first + 1} and {last}, but not when these steps were repeated")


def _error(found: str, step: int, rate: Schedule, *, updates: int) -> RunError:
    """Returns the error for a step. The error advises a smaller learning rate if one of the first `updates` updates had a rate above 0."""
    advice = "; try a smaller schedule.peak" if any(rate(index) > 0 for index in range(updates)) else ""
    return RunError(f"training diverged at step {step + 1}: {found}{advice}")


def _not_finite(exported: dict[str, Any]) -> str | None:
    """Describes the first parameter or moment with NaN or infinity, or returns None if all are finite."""
    for tree, kind in TREES.items():
        for name, value in flatten(exported.get(tree, {})).items():
            for part in [piece for _, piece in value.shards] if isinstance(value, Shards) else [value]:
                if not np.isfinite(part).all():
                    return f"{kind} {name} has {'NaN' if np.isnan(part).any() else 'infinity'}"
    return None
