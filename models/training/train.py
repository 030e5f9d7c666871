"""The training loop, one for all backends.

Everything a step depends on is a function of the configuration and of the step's number, so a run that was stopped,
however it was stopped, goes on from its last checkpoint to the same bits (on the same backend).
"""

import shlex
import signal
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from moespec.backends.contract import Backend
from moespec.models.data.dataset import Dataset
from moespec.models.data.loader import batch_of_step
from moespec.models.data.prefetch import Prefetcher
from moespec.models.data.prepared import prepared
from moespec.models.draws import of_step
from moespec.models.errors import Interrupted
from moespec.models.evaluation.sets import Evaluations, EvaluationSet
from moespec.models.hashing.tables import initial_params
from moespec.models.training.compilation import compile_if, pays
from moespec.models.training.config import Config
from moespec.models.training.divergence import diverged, diverged_somewhere, finite
from moespec.models.training.evaluate import evaluate, evaluation_size
from moespec.models.training.interruption import Interruption, check
from moespec.models.training.length import before_cooldown
from moespec.models.training.objective import draws, make_forward, make_loss, unflatten
from moespec.models.training.progress import Progress
from moespec.models.training.resolve import model_config, schedule
from moespec.models.training.rundirectory import RunDirectory
from moespec.models.training.saver import Saver
from moespec.models.training.savestate import Start, begin, record_of, settle

__all__ = ["Trained", "train"]


class Trained(NamedTuple):
    """The end of a run: the parameters (NumPy), the last evaluation, and the seconds that training took in all."""

    params: dict[str, Any]
    evaluation: dict[str, Any]
    seconds: float


def train(
    B: Backend,
    config: Config,
    dataset: Dataset,
    run: Path,
    *,
    initial: dict[str, Any] | None = None,
    sets: Mapping[str, EvaluationSet] | None = None,
) -> Trained:
    """Trains with the resolved `config` on backend `B`, in the folder `run` (claimed by `RunDirectory.claim`).

    Starts from the newest checkpoint there, or from the beginning: with the parameters `initial` (NumPy), or those of
    `initial_params`. `sets`, loaded by `load_sets`, are evaluated besides. On several devices (`connected`) each process calls
    it, and one of them writes the log. Raises CheckpointError for a checkpoint that is
    damaged or of another run, DataError for files that cannot be read, RunError when the run diverges: what is evaluated
    or saved is finite. Raises Interrupted when a signal stops it, after saving the step. Evaluations that it then does not
    make are owed, and made when the run goes on.
    """
    model, settings, directory = model_config(config.model), config.training, RunDirectory(run)
    examples = len(dataset.train)

    def begun() -> Start:
        return begin(
            B, config, directory, examples=examples, initial=lambda: initial or initial_params(config, dataset)
        )

    state, start, seconds, overrides, owed = begun()
    compiled = pays(B, settings.total, settings.compile)
    eager = {} if compiled else {"compiled": False}
    loss = make_loss(B, model, settings.loss, recompute=settings.recompute)
    update = B.make_step(loss, config.optimizer, accumulate=settings.accumulate, **eager)
    drawn = draws(model, settings.batch)
    forward, rate = compile_if(B, compiled, make_forward(B, model)), schedule(config)
    evaluation: dict[str, Any] = {}
    evaluations = Evaluations(B, config, sets or {})
    images = evaluation_size(B.sizes, model, settings.evaluation_batch, len(dataset.validation))

    # What worker processes run; they have no backend.
    rows = B.rows(settings.batch)
    # With the neighbours of its rows no device needs those of another to mix them: nothing is exchanged on the thread of batches.
    own = rows if B.sizes.devices > 1 else None
    host_batch = partial(batch_of_step, dataset, config.data, settings.batch, settings.seed, rows=own)

    def to_device(step: int, batch: dict[str, Any]) -> Any:
        numbers = of_step(settings.batch, seed=settings.seed, step=step)[rows.start : rows.stop]
        arrays = B.put({**batch, "random": numbers} if drawn else batch)
        mixing = arrays.pop("mixup", None), arrays.pop("neighbours", None)
        return {**arrays, "images": prepared(B, dataset, arrays.pop("images"), *mixing)}

    def make_batch(step: int) -> Any:
        return to_device(step, host_batch(step))

    def evaluated(due: list[str | None]) -> signal.Signals | None:
        """Makes the evaluations that are due (None: the run's own), and strikes them off, until a signal comes: which one."""
        nonlocal evaluation
        try:
            while due:
                check(B)
                params = B.state_params(state)
                if due[0] is not None:
                    progress.measured(done, due[0], evaluations.measure(due[0], params))
                else:
                    how: Any = {"batch": images, "kind": settings.loss}
                    evaluation = evaluate(B, forward, params, dataset, **how)
                    if config.optimizer.ema is not None:
                        of_average = evaluate(B, forward, B.state_average(state), dataset, **how)
                        evaluation["average"] = {name: of_average[name] for name in ("accuracy", "loss")}
                    progress.evaluated(done, evaluation)
                del due[0]
        except Interrupted as stop:
            return stop.signal
        return None

    with (
        Interruption() as interruption,
        Progress(run, settings, start=start, seconds=seconds, owed=owed, leads=B.process == 0) as progress,
        Saver(B, directory.checkpoints, keep=settings.keep, spare=before_cooldown(config)) as saver,
        Prefetcher(
            host_batch,
            start,
            settings.total,
            ahead=config.data.prefetch,
            workers=config.data.workers,
            receive=to_device,
        ) as batches,
    ):
        done, stopped_by = start, None
        if owed:
            stopped_by = evaluated(owed)
            progress.sync()
            settle(B, directory, start, owed)
        for step, batch in batches if stopped_by is None else ():
            state, metrics = update(state, batch, rate(step))
            done = step + 1
            logs, saves = (
                _due(done, every, settings.total) for every in (settings.log_every, settings.checkpoint_every)
            )
            due = [*[None] * _due(done, settings.evaluate_every, settings.total), *evaluations.due(done)]
            stopped_by = interruption.agreed(B, logs)
            progress.step()
            saves = saves or stopped_by is not None or done == before_cooldown(config)
            if logs or saves or due:
                measured = B.to_numpy(metrics)
                exported = B.export_state(state) if saves or due else {}
                if B.sizes.devices > 1:
                    if error := diverged_somewhere(B, measured, exported, last=done):
                        raise error
                elif not finite(measured, exported):
                    before = B.export_state(begun().state)
                    raise diverged(B, config, loss, make_batch, before, last=done, options=eager)
            if logs:
                progress.trained(done, rate(step), unflatten(measured))
            stopped_by = evaluated(due) or stopped_by
            if saves or stopped_by is not None:
                progress.sync()
                seconds = progress.seconds
                record = record_of(B, config, done, examples=examples, seconds=seconds, overrides=overrides)
                saver.save(exported, {**record, "owed": due} if due else record)
            if stopped_by is not None:
                break
        if stopped_by is not None:
            saver.wait()
            raise Interrupted(
                f"stopped by {stopped_by.name}; the {done} steps done of {settings.total} are saved. To go on: "
                f"moespec train --run {shlex.quote(str(run))} --resume",
                stopped_by,
            )
        return Trained(B.export_state(state)["params"], evaluation, progress.seconds)


def _due(done: int, every: int, steps: int) -> bool:
    return done % every == 0 or done == steps
