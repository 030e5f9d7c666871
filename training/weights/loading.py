"""Defines `moespec.training.load`, which loads a model with its weights for any framework."""

import importlib
from pathlib import Path
from typing import Any, NamedTuple

from moespec.backends.contract import Backend
from moespec.models.model import Model, chosen_backend
from moespec.spec.errors import ConfigError
from moespec.training.loop.resolve import choose_backend, load_backend
from moespec.training.weights.formats import Given, read
from moespec.training.weights.record import Weights

__all__ = ["Loaded", "load"]


class Loaded(NamedTuple):
    """model: see `moespec.models.Model`. params: the parameters of the model, as arrays of the model's backend."""

    model: Model
    params: Any

    def __repr__(self) -> str:
        """Describes the model in one line, without the parameters."""
        return f"Loaded(model={self.model!r}, params=...)"

    def module(self) -> Any:
        """Returns a `moespec.training.pretrained.PretrainedModel`: the model as a torch module, which can be uploaded to the hub.

        Raises ConfigError if the weights were loaded for a framework other than torch.
        """
        B = self.model.backend
        if B.name != "torch":
            raise ConfigError(f"backend={B.name!r}: torch modules need load(..., backend='torch')")
        pretrained: Any = importlib.import_module("moespec.training.weights.pretrained")
        about = {"Source": self.model.name}
        known = self.model.classes, self.model.images
        return pretrained.PretrainedModel(Weights(self.model.config, B.to_numpy(self.params), about, *known))


def load(
    path: str | Path,
    *,
    backend: str | None = None,
    step: int | str | None = None,
    format: str | None = None,
    model: str | None = None,
    arguments: dict[str, Any] | None = None,
    **fields: Any,
) -> Loaded:
    """Loads the model at `path` with its weights: `model, params = load("runs/x"); model.forward(params, images).logits`.

    path: the folder of a run, a file from `moespec convert`, a hub folder, or another project's weights.
    backend: one of "jax", "torch" and "numpy"; by default, the backend chosen at import.
    step: for a run, the step of a checkpoint, or "best" (training.keep_best); by default, the newest checkpoint.
    format: a key of `moespec.training.weights.formats.FORMATS`, if the files do not determine it.
    model, arguments, fields: the description of another project's model, if the files lack it (`moespec convert --help`).

    `load(path, backend="torch").module()` returns the model as a torch module.

    Raises RunError or CheckpointError for missing or damaged files, and ConfigError for weights that fit no model.
    """
    weights = read(Path(path), Given(model, arguments, fields, step), format)
    if backend not in (None, "jax", "torch", "numpy"):
        raise ConfigError(f"backend={backend!r}: expected one of jax, torch, numpy")
    B: Backend = chosen_backend() if backend is None else load_backend(choose_backend(backend)[0])
    known = weights.classes, weights.images
    return Loaded(Model(Path(path).name, weights.config, B, *known), B.from_numpy(weights.params))
