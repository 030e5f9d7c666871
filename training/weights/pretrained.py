"""Complete models as torch modules for the Hugging Face hub: `save_pretrained`, `from_pretrained`, `push_to_hub`."""

from pathlib import Path
from typing import Any, Self

import numpy as np

import moespec.backends.torch as B
from moespec.backends.pytrees import tree_map
from moespec.backends.torch import nn
from moespec.models.families import family
from moespec.spec.errors import ConfigError
from moespec.training.weights import hub
from moespec.training.weights.formats import Given
from moespec.training.weights.record import Weights

try:
    from huggingface_hub import PyTorchModelHubMixin as HubMixin
except ImportError:  # an extra: pip install 'moespec[huggingface]'

    class HubMixin:  # type: ignore[no-redef]
        """An empty class. Without `huggingface_hub`, save the weights with `moespec convert`."""


__all__ = ["PretrainedModel"]


class PretrainedModel(nn.Model, HubMixin):
    """A model with its weights. `moespec.training.load(path, backend="torch").module()` returns a `PretrainedModel`.

    weights: the configuration, the parameters, and known facts for the model card, such as class names.

    If `huggingface_hub` is installed (`pip install 'moespec[huggingface]'`), the class has `save_pretrained`, `from_pretrained` and
    `push_to_hub`, which write and read the folder of `moespec convert --to hub`: config.json, model.safetensors and README.md.
    """

    def __init__(self, weights: Weights) -> None:
        functions = family(weights.config)
        super().__init__(functions.forward, weights.config, weights.params, noise=functions.moe_noise)
        self.about, self.classes, self.images = weights.about, weights.classes, weights.images

    def save_pretrained(self, save_directory: str | Path, **options: Any) -> Any:
        """Writes a hub folder, see `huggingface_hub.ModelHubMixin`. Raises RunError if the folder contains other files."""
        hub.check_folder(Path(save_directory))  # checked before the mixin removes an existing config.json
        return super().save_pretrained(save_directory, **options)

    def _save_pretrained(self, save_directory: Path) -> None:
        # Expert tables are integers in a module, but floating-point arrays in files.
        params = tree_map(lambda x: x if x.dtype.kind == "f" else x.astype(np.float32), B.to_numpy(self.params()))
        hub.write(save_directory, Weights(self.config, params, self.about, self.classes, self.images))

    @classmethod
    def _from_pretrained(cls, *, model_id: str, **options: Any) -> Self:
        """Loads a model for `from_pretrained` of the mixin. options: passed to `snapshot_download` for a model on the hub."""
        for name, value in options.items():
            if name not in ("revision", "cache_dir", "force_download", "local_files_only", "token"):
                raise ConfigError(f"{name}={value!r} is not an option of from_pretrained; see config.json")
        folder = Path(model_id)
        if not folder.is_dir():
            from huggingface_hub import snapshot_download

            folder = Path(snapshot_download(model_id, allow_patterns=list(hub.OWN), **options))
        return cls(hub.read(folder, Given()))
