"""The rows of the conformance matrix are the specification's algorithms and the models built from them."""

from moespec import spec
from moespec.spec.algorithm import Algorithm

__all__ = ["ALGORITHMS"]

MODELS = (
    Algorithm("mixer", "Tolstikhin et al. 2021 (arXiv 2105.01601)", 2),
    Algorithm("vit", "Dosovitskiy et al. 2020 (arXiv 2010.11929)", 3),
)
ALGORITHMS: dict[str, Algorithm] = {**spec.ALGORITHMS, **{model.name: model for model in MODELS}}
"""The rows of the matrix by name: functions, routers and models."""
