"""Models, each written once for all backends: `create("vit_b16", moe="last_half", router="soft_moe", experts=128)`.

`create` binds a model to the selected backend (`moespec.backends`). `moespec.training.load("runs/x")` returns a model
with its trained weights. The module of each model family (`moespec.models.vit`, `mixer`, `sparse_mlp`)
provides `named`, `init` and `forward`, which takes the backend as an argument.
"""

from typing import TYPE_CHECKING, Any

from moespec.spec.errors import ConfigError
from moespec.spec.routers import Router, RouterName

if TYPE_CHECKING:
    from moespec.models.model import Model
else:

    def __getattr__(name: str) -> Any:
        if name != "Model":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from moespec.models.model import Model  # this import loads all model families

        return Model


__all__ = ["Model", "create", "list_models"]


def create(name: str, *, router: RouterName | Router[Any] | None = None, **overrides: Any) -> "Model":
    """Returns the model `name`, bound to the selected backend. `overrides` replace fields of its configuration.

    `list_models()` lists the names. Names of the form `vit_<size><patch>` and `mixer_<size><patch>` may have any patch size. A ViT is
    dense unless `moe` selects MoE blocks. The field `router` is the name of a router or a custom `Router`.

    Raises ConfigError for an unknown name, for an unknown field, and for a field of MoE blocks if the model has no MoE block.
    """
    from moespec.models import families
    from moespec.models.model import Model, chosen_backend
    from moespec.models.options import MOE, marks

    overrides |= {} if router is None else {"router": router}
    config = families.of_name(name).named(name, **overrides)
    field = next((name for name in overrides if MOE in marks(type(config), name).get("only", ())), None)
    if field and getattr(config, "moe", "none") == "none" and "moe" not in overrides:
        raise ConfigError(f"{field}={overrides[field]!r} has no effect without MoE blocks; set moe='last_half'")
    return Model(name, config, chosen_backend())


def list_models() -> list[str]:
    """Returns the model names that `create` accepts, with the usual patch sizes only."""
    from moespec.models import families

    return families.names()
