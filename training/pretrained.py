"""Exports the public names of `moespec.training.weights.pretrained`: complete models as torch modules for the Hugging Face hub."""

from moespec.training.weights.pretrained import PretrainedModel

__all__ = ["PretrainedModel"]
