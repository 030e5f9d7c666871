"""Computes the length of a run in steps, and the steps that a longer run can reuse."""

import math
from dataclasses import replace
from fractions import Fraction

from moespec.spec.own import is_own
from moespec.training.configuration.config import Config, ScheduleConfig, TrainingConfig

__all__ = ["before_cooldown", "images_seen", "in_steps", "notes", "settled", "shrunk"]


def in_steps(training: TrainingConfig, images: int) -> TrainingConfig:
    """Returns the section `training` with the number of steps, computed from epochs, examples or the default length.

        steps = ceil(epochs * images / batch) = ceil(examples / batch)

    images: the number of images per epoch. Source: google-research/vmoe, vmoe/train/trainer.py, get_train_steps_and_epochs, which also
    rounds up. The function `steps` of big_vision/utils.py rounds to the nearest integer.
    """
    if training.epochs is not None:
        length = Fraction(str(training.epochs)) * images / training.batch
    elif training.examples is not None:
        length = Fraction(training.examples, training.batch)
    else:
        return replace(training, steps=training.total)
    return replace(training, steps=math.ceil(length), epochs=None, examples=None)


def images_seen(training: TrainingConfig) -> int | None:
    """Returns the number of training images in a run, counting repetitions, or None if the length of the run is in epochs."""
    return None if training.epochs is not None else in_steps(training, 0).total * training.batch


def shrunk(schedule: ScheduleConfig, steps: int) -> ScheduleConfig:
    """Returns the schedule, shortened to fit the run. A warm-up at least as long as the run is cut to half of the run. A cooldown longer
    than the steps after the warm-up is cut to half of these steps.
    """
    warmup = schedule.warmup if schedule.warmup < steps else steps // 2
    fits = schedule.cooldown is None or schedule.cooldown <= steps - warmup
    return replace(schedule, warmup=warmup, cooldown=schedule.cooldown if fits else (steps - warmup) // 2)


def notes(before: Config, after: Config) -> list[str]:
    """Returns notes for the user on the differences between a configuration and its resolved form."""
    lines, steps = [], after.training.total
    for name, number in (("epochs", before.training.epochs), ("examples", before.training.examples)):
        if number is not None:
            lines.append(f"training.{name}={number:g}: {steps} steps")
    for name, why in (
        ("warmup", f"must be shorter than the {steps} steps of the run"),
        ("cooldown", f"longer than the {steps - after.schedule.warmup} steps after the warm-up"),
    ):
        number, now = getattr(before.schedule, name), getattr(after.schedule, name)
        if now != number:
            lines.append(f"schedule.{name}={number}: {why}, shortened to {now}")
    return lines


def settled(schedule: ScheduleConfig, steps: int) -> int:
    """Returns how many initial steps of a run of `steps` steps have the same learning rates in a longer run."""
    if schedule.name == "rsqrt":
        return steps - (schedule.cooldown or 0)
    return 0 if is_own(schedule.name) else min(schedule.warmup + 1, steps)


def before_cooldown(config: Config) -> int | None:
    """Returns the step at which the cooldown begins and from which a longer run can continue, or None without a cooldown."""
    cooldown = config.schedule.cooldown if config.schedule.name == "rsqrt" else None
    return config.training.total - cooldown if cooldown else None
