"""Models, written once against a backend: `create("vit_b16", moe="last_half", router="soft_moe", experts=128)`.

`create` binds a model to the backend chosen at import (`from moespec import backends`), and `load("runs/x")` gives one
with its trained weights. A model's own module
(`moespec.models.vit`, `mixer`, `sparse_mlp`) has the same functions with the backend as an argument.
"""

import difflib
import importlib
from dataclasses import dataclass
from typing import Any, cast

from moespec.backends.contract import Backend
from moespec.models import families, layers
from moespec.spec.errors import ConfigError
from moespec.spec.routing import Params

__all__ = ["Model", "chosen_backend", "create", "list_models", "load"]

_MOE_FIELDS = ("router", "experts", "router_options", "expert_init", "group_images", "token_ids", "codes")


@dataclass(frozen=True)
class Model:
    """A model bound to a backend: `init` gives its NumPy parameters, `forward` runs on arrays of the backend.

    name: what it was created as. config: all of its fields. backend: the module that computes it.
    """

    name: str
    config: families.Config
    backend: Backend

    def init(self, seed: int = 0) -> Params:
        """Initial parameters (NumPy float32); see `init` of the model's own module."""
        params: Params = families.family(self.config).init(self.config, seed)
        return params

    def forward(
        self, params: Params, images: Any, *, noise: list[Any] | None = None, train: bool = False
    ) -> layers.Output:
        """The model on a batch of images; see `forward` of the model's own module."""
        forward = families.family(self.config).forward
        output: layers.Output = forward(self.backend, self.config, params, images, noise=noise, train=train)
        return output

    @property
    def parameter_count(self) -> int:
        """The number of parameters (nothing is allocated)."""
        count: int = families.family(self.config).parameter_count(self.config)
        return count


def create(name: str, **overrides: Any) -> Model:
    """The model `name` with fields of its config replaced, on the backend chosen at import.

    Names are those of `list_models()`, and `vit_<size><patch>` and `mixer_<size><patch>` for any other patch size. A ViT
    is dense unless `moe` says which blocks are MoE.

    Raises ConfigError for an unknown name (with the nearest known ones), an unknown field, or fields of the MoE blocks
    given without `moe`.
    """
    try:
        config = families.of_name(name).named(name, **overrides)
    except ConfigError as error:
        if not str(error).startswith("name="):
            raise
        near = difflib.get_close_matches(name, list_models(), n=3) or list_models()
        raise ConfigError(f"name={name!r} is not a model. The nearest: {', '.join(near)}") from None
    given = [field for field in _MOE_FIELDS if field in overrides]
    if given and getattr(config, "moe", "none") == "none" and "moe" not in overrides:
        field = given[0]
        raise ConfigError(f"{field}={overrides[field]!r} concerns MoE blocks, but there are none: give moe='last_half'")
    return Model(name, config, chosen_backend())


def list_models() -> list[str]:
    """The names that `create` knows, the usual patch sizes only."""
    return families.names()


def load(path: Any, **options: Any) -> Any:
    """The model at `path`, such as a run, with its weights; see `moespec.models.weights.loading.load`."""
    from moespec.models.weights import loading  # what it reads runs with needs the models

    return loading.load(path, **options)


def chosen_backend() -> Backend:
    """The backend chosen at import of `moespec.backends`."""
    from moespec import backends  # importing it chooses, which listing models must not

    return cast(Backend, importlib.import_module(f"moespec.backends.{backends.name}"))
