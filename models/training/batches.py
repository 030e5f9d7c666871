"""The batches of a run, which are functions of their step's number: made on the host, perhaps by workers, and put on the devices."""

from functools import partial
from typing import Any

from moespec.backends.contract import Backend
from moespec.models.data.dataset import Dataset
from moespec.models.data.loader import batch_of_step
from moespec.models.data.prefetch import Prefetcher
from moespec.models.data.prepared import prepared
from moespec.models.draws import of_step
from moespec.models.training.config import Config
from moespec.models.training.objective import draws
from moespec.models.training.resolve import model_config

__all__ = ["Batches"]


class Batches:
    """`batches(step)` is the batch of a step on the devices of `B`; `ahead` makes them in advance."""

    def __init__(self, B: Backend, config: Config, dataset: Dataset) -> None:
        self._B, self._config, self._dataset = B, config, dataset
        batch, seed = config.training.batch, config.training.seed
        self._rows, self._draws = B.rows(batch), draws(model_config(config.model), batch)
        # With the neighbours of its rows no device needs those of another to mix them: nothing is exchanged on the thread of batches.
        own = self._rows if B.sizes.devices > 1 else None
        # What worker processes run; they have no backend.
        self._on_host = partial(batch_of_step, dataset, config.data, batch, seed, rows=own)

    def __call__(self, step: int) -> Any:
        return self._on_devices(step, self._on_host(step))

    def ahead(self, start: int) -> Prefetcher:
        """Those from step `start` to the end of the run, in order."""
        data = self._config.data
        how: Any = {"ahead": data.prefetch, "workers": data.workers, "receive": self._on_devices}
        return Prefetcher(self._on_host, start, self._config.training.total, **how)

    def _on_devices(self, step: int, batch: dict[str, Any]) -> Any:
        if self._draws:
            numbers = of_step(self._config.training.batch, seed=self._config.training.seed, step=step)
            batch = {**batch, "random": numbers[self._rows.start : self._rows.stop]}
        arrays = self._B.put(batch)
        mixing = arrays.pop("mixup", None), arrays.pop("neighbours", None)
        return {**arrays, "images": prepared(self._B, self._dataset, arrays.pop("images"), *mixing)}
