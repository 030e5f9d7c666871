"""Whole models as torch modules for Hugging Face's hub: `save_pretrained`, `from_pretrained`, `push_to_hub`."""

from pathlib import Path
from typing import Any, Self

import moespec.backends.torch as B
from moespec.backends.torch import nn
from moespec.backends.torch.nn.hub import HubMixin
from moespec.models.families import family
from moespec.models.weights import hub
from moespec.models.weights.formats import Given
from moespec.models.weights.record import Weights

__all__ = ["PretrainedModel"]


class PretrainedModel(nn.Model, HubMixin):
    """A model with its weights; `moespec.models.load(path, backend="torch").module()` is one.

    weights: the configuration, the parameters, and what is known of them: a model card and the names of the classes.

    With `huggingface_hub` installed (`pip install 'moespec[huggingface]'`) it has `save_pretrained`, `from_pretrained` and
    `push_to_hub`, which write and read the folder of `moespec convert --to hub`: config.json, model.safetensors and README.md.
    """

    def __init__(self, weights: Weights) -> None:
        functions = family(weights.config)
        super().__init__(functions.forward, weights.config, weights.params, noise=functions.moe_noise)
        self.about, self.classes = weights.about, weights.classes

    def _save_pretrained(self, save_directory: Path) -> None:
        hub.write(save_directory, Weights(self.config, B.to_numpy(self.params()), self.about, self.classes))

    @classmethod
    def _from_pretrained(cls, *, model_id: str, **options: Any) -> Self:
        folder = Path(model_id)
        if not folder.is_dir():
            from huggingface_hub import snapshot_download

            folder = Path(snapshot_download(model_id, allow_patterns=list(hub.OWN), **options))
        return cls(hub.read(folder, Given()))
