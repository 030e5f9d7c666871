"""The training loop of all backends.

Every input of a step is a function of the configuration and the step number. On the same backend, an interrupted run
therefore resumes bit for bit from its last checkpoint.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from moespec.backends.contract import Backend, Step
from moespec.backends.optimizer import OptimizerConfig
from moespec.models.errors import DataError
from moespec.models.families import family, fewest_images
from moespec.models.layers import state_update
from moespec.models.random_keys import of_step
from moespec.spec.errors import ConfigError, SpecError
from moespec.spec.own import is_own
from moespec.training.compilation import pays
from moespec.training.configuration.config import Config
from moespec.training.configuration.length import before_cooldown
from moespec.training.data.dataset import Dataset
from moespec.training.data.loader import prepared
from moespec.training.data.prefetch import Prefetcher
from moespec.training.interruption import Interruption
from moespec.training.loop.best import ended, updated
from moespec.training.loop.checkpoint import Saver, latest
from moespec.training.loop.evaluations import Evaluate, EvaluationSet
from moespec.training.loop.hash_tables import initial_params
from moespec.training.loop.hooks import AfterStep, Finite, Hook, Stop, diverged
from moespec.training.loop.progress import Progress
from moespec.training.loop.resolve import model_config, schedule
from moespec.training.loop.resume import Start, begin, record_of, settle
from moespec.training.loop.rundirectory import RunDirectory
from moespec.training.loop.watchdog import tell
from moespec.training.objectives.table import draws, extra_params, objective_of

__all__ = ["Trained", "train"]


class Trained(NamedTuple):
    """The result of a run: the parameters (NumPy), the last evaluation, and the total seconds of training."""

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
    hooks: Sequence[Hook] = (),
) -> Trained:
    """Trains with the resolved `config` on backend `B`, in the folder `run` (claimed by `RunDirectory.claim`).

    Starts from the newest checkpoint in `run`. Without a checkpoint, starts from the parameters `initial` (NumPy), by default the initial
    parameters of the model (`initial_params`) and of the objective. With several processes (`connected`), each process calls this function.

    sets: additional evaluations, loaded by `load_sets`.
    hooks: functions that each process calls with an `AfterStep` after each step; `trackers.loggers` adds the hooks of `config.log`.

    Raises CheckpointError for a checkpoint that is damaged or belongs to another run, DataError for unreadable files,
    RunError if the run diverges, and, after saving the step, Interrupted if a signal stops the run.
    """
    settings, directory, stamp = config.training, RunDirectory(run), dataset.stamp

    def begun() -> Start:
        extra = partial(extra_params, config, model)
        how: Any = {"initial": lambda: initial or {**initial_params(config, dataset), **extra()}}
        return begin(B, config, directory, stamp=stamp, **how)

    objective, model = objective_of(config), model_config(config.model)
    state, start, _, overrides, pending, _ = here = begun()
    dataset = objective.prepared(B, config, model, dataset, run, B.state_params(state))
    make_step, batches, rate = step_maker(B, config), Batches(B, config, dataset), schedule(config)
    update = make_step(config.optimizer)
    # The log is read outside `Interruption`: nothing needs saving yet, so a signal may end the process.
    progress = Progress(run, settings, here, leads=B.process == 0)
    with (
        Interruption() as interruption,
        progress,
        Saver(B, directory.checkpoints, keep=settings.keep, spare=before_cooldown(config)) as saver,
        batches.ahead(start) as steps,
    ):
        stop = Stop(interruption, saver, run)
        finite = Finite(lambda last: diverged(B, config, make_step, batches, B.export_state(begun().state), last=last))
        evaluate = Evaluate(B, config, sets or {}, dataset, progress)

        def log(after: AfterStep) -> None:
            after.logged = progress.trained(after.done, after.rate, after.metrics)

        def dispatched(after: AfterStep) -> None:
            progress.step()
            if after.logs:
                log(after)

        def follow(after: AfterStep) -> None:
            """Records whether the step is the best so far. If the run stops early, logs the last step and runs all its evaluations."""
            before, after.best = after.best, updated(B, config, after.best, after.done, after.evaluations)
            if after.best != before and ended(config, after.best):
                if after.measured and not after.logged:
                    log(after)
                due = evaluate.pending(after.done)
                after.pending += [name for name in evaluate.pending(settings.total) if name not in due]
                evaluate(after)

        def noted(after: AfterStep) -> dict[str, Any]:
            return {"owed": after.pending, "best": after.best and after.best._asdict()}

        def save(after: AfterStep) -> None:
            """Saves the state after syncing the log to disk."""
            if after.saves:
                progress.sync()
                record = record_of(B, config, after.done, seconds=progress.seconds, stamp=stamp, overrides=overrides)
                saver.save(after.exported, {**record, "logged": progress.logged, **noted(after)})

        each: list[Hook] = [tell, stop, finite, dispatched, evaluate, follow, *hooks, save, stop.end]
        best = directory.best(settings.keep_best)
        after = AfterStep(B, config, state, start, pending=pending, best=best)
        if pending:
            evaluate(after)
            follow(after)
            progress.sync()
            for hook in hooks:
                hook(after)
            settle(B, directory, start, noted(after))
            stop.end(after)

        batches_ahead = iter(steps)
        for _ in range(start, settings.total):
            if ended(config, after.best):
                break
            try:
                step, batch = next(batches_ahead)
            except SpecError as error:
                if after.measured and not after.saves and B.processes == 1:  # several processes can only save together
                    after.unread = True
                    finite(after)
                    save(after)
                    saver.wait()
                newest = latest(directory.checkpoints)
                how = (
                    " once the file is readable (with --override if it changed); to leave it out, start a new run"
                    * isinstance(error, DataError)
                )
                error.args = (f"{error}; --resume continues from step {int(newest.name) if newest else 0}{how}",)
                raise
            state, metrics = update(state, batch, rate(step))
            if is_own(config.objective) and (name := objective.measure[0]) not in metrics:
                what = f"objective={config.objective!r}: its measure is {name!r}"
                raise ConfigError(f"{what}, but the loss returns only {', '.join(metrics)}")
            pending = evaluate.pending(step + 1)
            after = AfterStep(B, config, state, step + 1, rate(step), metrics, pending, best=after.best)
            for hook in each:
                hook(after)
        return Trained(B.export_state(state)["params"], evaluate.last, progress.seconds)


def step_maker(B: Backend, config: Config) -> Callable[[OptimizerConfig], Step]:
    """Returns `make(optimizer)`, which builds the training step of a resolved configuration and compiles the step if that saves time."""
    training, objective, model = config.training, objective_of(config), model_config(config.model)
    layers = [
        layer._replace(path=f"{where}{layer.path}")
        for where, tower in objective.routed(config, model).items()
        for layer in family(tower).moe_layers(tower, fewest_images(tower))
    ]
    how: Any = {"accumulate": training.accumulate, "averaged": objective.averaged, **state_update(B, layers)}
    if not pays(B, training.total, training.compile):
        how["compiled"] = False
    if training.cuda_graph:
        how["cuda_graph"] = True
    loss = objective.make_loss(B, config, model)
    return lambda optimizer: B.make_step(loss, optimizer, **how)


class Batches:
    """`batches(step)` returns the batch of a step on the devices of `B`; `ahead` prepares batches in advance."""

    def __init__(self, B: Backend, config: Config, dataset: Dataset) -> None:
        self._B, self._config, self._dataset = B, config, dataset
        objective = objective_of(config)
        self._rows, self._views = B.rows(config.training.batch), objective.views
        self._draws = draws(config, model_config(config.model))
        # A batch of these rows includes the images that mixup blends in, so devices exchange no images.
        rows = self._rows if B.sizes.devices > 1 else None
        self._on_host = objective.make_batch(config, dataset, rows)  # runs in worker processes, which have no backend

    def __call__(self, step: int) -> Any:
        return self._on_devices(step, self._on_host(step))

    def ahead(self, start: int) -> Prefetcher:
        """Prepares the batches from step `start` to the end of the run, in order."""
        data = self._config.data
        how: Any = {"ahead": data.prefetch, "workers": data.workers, "receive": self._on_devices}
        return Prefetcher(self._on_host, start, self._config.training.total, **how)

    def _on_devices(self, step: int, batch: dict[str, Any]) -> Any:
        if self._views == 1:
            return self._view(step, batch, 0)
        return {name: self._view(step, one, view) for view, (name, one) in enumerate(batch.items())}

    def _view(self, step: int, batch: dict[str, Any], view: int) -> Any:
        if self._draws:
            images, seed = self._config.training.batch, self._config.training.seed
            first = view * images  # each view uses different rows of the random keys
            numbers = of_step(self._views * images, seed=seed, step=step)
            batch = {**batch, "random": numbers[first + self._rows.start : first + self._rows.stop]}
        arrays = self._B.put(batch)
        if "images" not in arrays:
            return arrays
        mixing = arrays.pop("mixup", None), arrays.pop("neighbours", None)
        return {**arrays, "images": prepared(self._B, self._dataset, arrays.pop("images"), *mixing)}
