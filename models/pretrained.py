"""The public name of `moespec.models.weights.pretrained`: whole models as torch modules for Hugging Face's hub."""

from moespec.models.weights.pretrained import PretrainedModel

__all__ = ["PretrainedModel"]
