"""The rows of the conformance matrix: what the specification has, and the models that are made of it."""

from moespec import spec
from moespec.models import mixer, vit
from moespec.spec.algorithm import Algorithm

__all__ = ["ALGORITHMS"]

ALGORITHMS: dict[str, Algorithm] = {
    **spec.ALGORITHMS,
    **{algorithm.name: algorithm for model in (mixer, vit) for algorithm in model.ALGORITHMS},
}
"""The rows by name: the functions, the routers, the models."""
