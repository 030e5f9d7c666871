"""The methods of the Hugging Face hub. They import `huggingface_hub` when called, because the import takes a tenth of `import torch`."""

from pathlib import Path
from typing import Any, Self

from torch import nn

from moespec.spec.errors import ConfigError

__all__ = ["OnHub"]


class OnHub(nn.Module):
    """A module with `save_pretrained`, `from_pretrained` and `push_to_hub` of `huggingface_hub.PyTorchModelHubMixin`.

    They need `pip install 'moespec[huggingface]'`, and raise ConfigError without it.
    """

    @property
    def _arguments(self) -> dict[str, Any]:
        """The arguments that create the module, for config.json."""
        raise NotImplementedError

    def save_pretrained(self, save_directory: str | Path, **options: Any) -> Any:
        """Writes config.json, model.safetensors and a model card to a folder."""
        return self._of_library().save_pretrained(save_directory, **options)

    def push_to_hub(self, repo_id: str, **options: Any) -> Any:
        """Uploads what `save_pretrained` writes."""
        return self._of_library().push_to_hub(repo_id, **options)

    @classmethod
    def from_pretrained(cls, name_or_path: str | Path, **options: Any) -> Self:
        """Loads a module from a folder or from the hub, and sets it to evaluation mode."""
        module: Any = _with_mixin(cls).from_pretrained(name_or_path, **options)
        del module._hub_mixin_config
        module.__class__ = cls
        result: Self = module
        return result

    def _of_library(self) -> Any:
        """Returns an object of the library's class that shares the parameters of this module."""
        kind = _with_mixin(type(self))
        module = kind.__new__(kind)
        vars(module).update(vars(self), _hub_mixin_config=self._arguments)
        return module


def _with_mixin(kind: type[OnHub]) -> Any:
    """Derives a class from `kind` and from the mixin of the library."""
    try:
        from huggingface_hub import PyTorchModelHubMixin
    except ImportError as error:
        raise ConfigError(
            "save_pretrained, from_pretrained and push_to_hub need huggingface_hub: pip install 'moespec[huggingface]'"
        ) from error
    return type(kind.__name__, (PyTorchModelHubMixin, kind), {"__module__": kind.__module__})
