"""Shows and records the progress of training: a progress bar with rate and time left, and the log."""

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from moespec.training.configuration.config import TrainingConfig
from moespec.training.loop.resume import Start
from moespec.training.loop.runlog import RunLog
from moespec.training.progress_bar import Bar

__all__ = ["Progress", "called", "kind_of", "told"]


COLLAPSED = 0.01
"""If the spread of the features is below this value, a warning says that the features are nearly constant."""


class Progress:
    """Shows and records the progress of a run that starts or resumes at `begun`. Use as a context manager.

    leads: whether this process shows and records the progress; if False, all methods do nothing.
    """

    def __init__(self, run: Path, settings: TrainingConfig, begun: Start, *, leads: bool = True) -> None:
        start, again = begun.step, [kind_of(name) for name in begun.pending]
        self._batch = settings.batch
        self._log = RunLog(run, start, again, logged=begun.logged) if leads else None
        self._options: Any = {"total": settings.total, "unit": "step", "shown": leads}
        wait: dict[str, Any] = {"bar_format": "{desc}", "leave": False} if start < settings.total else {}
        self._bar = Bar(
            initial=start, desc="train: compiling the first step ..." if wait else "train", **wait, **self._options
        )
        self._compiling = bool(wait)
        self._bar.refresh()
        self._began = time.perf_counter() - begun.seconds
        self._mark(start)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):
            self._bar.close()
        if self._log is not None:
            self._log.close()

    @property
    def seconds(self) -> float:
        """The seconds of training in all sessions so far, including compilation and evaluations."""
        return time.perf_counter() - self._began

    @property
    def logged(self) -> int:
        """The number of lines in the log."""
        return 0 if self._log is None else self._log.lines

    def step(self) -> None:
        """Records that one more step was dispatched to the backend."""
        with suppress(OSError):  # A closed terminal must not end the run.
            if self._compiling:  # Time and rate exclude compilation.
                self._bar.close()
                self._bar, self._compiling = Bar(initial=self._bar.n + 1, desc="train", **self._options), False
            else:
                self._bar.update()

    def trained(self, done: int, rate: float, metrics: dict[str, Any]) -> dict[str, Any]:
        """Records the metrics of step `done` and returns the logged values."""
        if self._log is None:
            return {}
        images = self._batch * (done - self._marked_step) / (time.perf_counter() - self._marked_time)
        line = {**metrics, "learning_rate": rate, "images_per_second": images}
        self._log.write("train", done, line)
        self._bar.set_postfix(loss=f"{metrics['loss']:.3f}", refresh=False)
        self._mark(done)
        return line

    def evaluated(self, done: int, name: str | None, results: dict[str, Any]) -> None:
        """Records and prints the results of the evaluation `name` (None for the run's own images) after `done` steps."""
        if self._log is None:
            return
        self._log.write(kind_of(name), done, {**results, **({} if name else {"seconds": self.seconds})})
        text = f"{name}: {told(results)}"
        if name is None:
            average = f", moving average {results['average']['accuracy']:.4f}" if "average" in results else ""
            keys = ("balanced_accuracy", "largest_class", "loss", "spread")
            rest = [f"{key.replace('_', ' ')} {results[key]:.4f}" for key in keys if key in results]
            measured = f"validation {called(results)} {results['accuracy']:.4f}{average}"
            text = ", ".join([measured, *rest, f"{self.seconds:.0f} s"])
        if results.get("spread", 1.0) < COLLAPSED:
            text += "; warning: the features are nearly constant, so the encoder may have collapsed"
        if sys.stdout is not None:
            with suppress(OSError):
                self._bar.write(f"step {done}: {text}")
        self._mark(done)

    def sync(self) -> None:
        """Waits until the log is on disk, so that no checkpoint is newer than the log."""
        if self._log is not None:
            self._log.sync()

    def _mark(self, step: int) -> None:
        self._marked_step, self._marked_time = step, time.perf_counter()


def kind_of(name: str | None) -> str:
    """The kind of the log lines of the evaluation `name`."""
    return "evaluation" if name is None else f"evaluation/{name}"


def called(results: dict[str, Any]) -> str:
    """Describes what "accuracy" means in an evaluation on the run's own images."""
    if "text_to_image" in results:
        return "recall at 1 (images and texts)"
    return "nearest-neighbour accuracy" if "spread" in results else "accuracy"


def told(results: dict[str, Any]) -> str:
    """Formats the results of an evaluation in one line, without routing metrics."""
    single = {name: value for name, value in results.items() if not isinstance(value, dict | list)}
    parts = [f"{name} {value:.4f}" if value % 1 else f"{name} {value:.0f}" for name, value in single.items()]
    nested = {name: value for name, value in results.items() if isinstance(value, dict) and name != "moe"}
    return "; ".join([", ".join(parts)] * bool(parts) + [f"{name}: {told(value)}" for name, value in nested.items()])
