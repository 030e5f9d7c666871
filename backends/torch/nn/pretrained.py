"""Loads Hugging Face transformers models that contain moespec layers. The saved configuration describes these layers."""

from typing import Any, TypeVar

from torch import nn

from moespec.backends.torch.nn.layer import MoE
from moespec.backends.torch.nn.replace import CONFIG, replace_mlps
from moespec.spec.errors import ConfigError

__all__ = ["from_pretrained"]

Class = TypeVar("Class", bound=nn.Module)


def from_pretrained(cls: type[Class], folder: Any, **options: Any) -> Class:
    """Loads the model that transformers' `model.save_pretrained(folder)` saved, with the layers that `replace_mlps` inserted.

    cls: the class of the model, such as `ViTForImageClassification`; not an Auto class, which reads the class from the configuration.
    folder, options: as for `cls.from_pretrained`; folder may name a repository of the hub.

    Builds the model from its configuration, calls `replace_mlps` as recorded in `moespec.replaced` of config.json, then reads the weights.

    Raises ConfigError for a class that is not a transformers model, a configuration that records no replacement, a
    recorded replacement that does not fit the model, and files without the parameters of a moespec layer.
    """
    if not (isinstance(cls, type) and issubclass(cls, nn.Module) and hasattr(cls, "from_pretrained")):
        raise ConfigError(f"cls: expected a model class of transformers (not an Auto class), got {cls!r}")

    def init(self: Any, config: Any, *arguments: Any, **more: Any) -> None:
        cls.__init__(self, config, *arguments, **more)
        entry = getattr(config, CONFIG, None)
        if not isinstance(entry, dict) or not isinstance(calls := entry.get("replaced"), list) or not calls:
            raise ConfigError(
                f"folder={str(folder)!r}: its configuration has no MoE layers ({CONFIG}={entry!r}); use {cls.__name__}.from_pretrained"
            )
        delattr(config, CONFIG)  # each call of `replace_mlps` below adds an entry
        for call in calls:
            try:
                replace_mlps(self, **{"router": "soft_moe", **call})  # moespec 0.2 did not record the default router
            except TypeError as error:
                raise ConfigError(f"folder={str(folder)!r}: {CONFIG}.replaced: bad entry {call!r}: {error}") from error

    made: Any = type(cls.__name__, (cls,), {"__init__": init, "__module__": cls.__module__})
    model, found = made.from_pretrained(folder, **options, output_loading_info=True)
    layers = tuple(f"{name}." for name, layer in model.named_modules() if isinstance(layer, MoE))
    missing = [*found["missing_keys"], *(key for key, *_ in found["mismatched_keys"])]
    if lost := sorted(key for key in missing if key.startswith(layers)):
        raise ConfigError(f"folder={str(folder)!r}: its files have no {lost[0]} of the configured shape")
    model.__class__ = cls
    result: Class = model
    return result
