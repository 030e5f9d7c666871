"""The rows of the conformance matrix: what the specification has, and the models that are made of it."""

from moespec import spec
from moespec.spec.algorithm import Algorithm

__all__ = ["ALGORITHMS", "OWN", "row"]

MODELS = (
    Algorithm("mixer", "Tolstikhin et al. 2021 (arXiv 2105.01601)", 2),
    Algorithm("vit", "Dosovitskiy et al. 2020 (arXiv 2010.11929)", 3),
)
ALGORITHMS: dict[str, Algorithm] = {**spec.ALGORITHMS, **{model.name: model for model in MODELS}}
"""The rows by name: the functions, the routers, the models."""
OWN: dict[str, Algorithm] = {}
"""The rows of routers of the user's own whose vectors this process makes or checks; the one function of each is the router's name."""


def row(name: str) -> Algorithm:
    """The row of that name, of ours or of the user's own."""
    return ALGORITHMS.get(name) or OWN[name]
