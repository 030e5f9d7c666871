"""Defines `Model`, which binds a model to a backend."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from moespec.backends.contract import Backend
from moespec.models import families, layers
from moespec.spec.routing import Params

__all__ = ["Model", "chosen_backend"]


@dataclass(frozen=True, repr=False)
class Model:
    """A model bound to a backend: `init` returns NumPy parameters, and `forward` runs on arrays of the backend.

    name: the name of the model or its file. config: the configuration. backend: the module of the backend. classes: the class names in the
    order of the logits, if known. images: how to preprocess an image (`mean`, `std`, `resize`, `background`), if known.
    """

    name: str
    config: families.Config
    backend: Backend
    classes: tuple[str, ...] = ()
    images: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __repr__(self) -> str:
        """Describes the model in one line, without the fields of its config."""
        config, size = self.config, f"{self.parameter_count:,} parameters"
        router = f", router {getattr(config, 'router', '')}" if getattr(config, "moe", "none") != "none" else ""
        return f"<Model {self.name!r}: {type(config).__name__}{router}, {size}, backend {self.backend.name}>"

    def init(self, seed: int = 0) -> Params:
        """Returns initial parameters (NumPy float32); see `init` in the model's module."""
        return cast(Params, families.family(self.config).init(self.config, seed))

    def forward(
        self, params: Params, images: Any, *, noise: list[Any] | None = None, train: bool = False
    ) -> layers.Output:
        """Runs the model on a batch of images; see `forward` in the model's module."""
        forward = families.family(self.config).forward
        return cast(layers.Output, forward(self.backend, self.config, params, images, noise=noise, train=train))

    @property
    def parameter_count(self) -> int:
        """Counts the parameters without allocating them."""
        return cast(int, families.family(self.config).parameter_count(self.config))


def chosen_backend() -> Backend:
    """Returns the backend that `moespec.backends` selects."""
    from moespec import backends  # reading `backends.name` selects a backend

    return cast(Backend, importlib.import_module(f"moespec.backends.{backends.name}"))
