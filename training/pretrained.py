"""The public name of `moespec.training.weights.pretrained`: whole models as torch modules for Hugging Face's hub."""

from moespec.training.weights.pretrained import PretrainedModel

__all__ = ["PretrainedModel"]
