"""What cases are about, as words to choose them by."""

from moespec.conformance.author import large
from moespec.conformance.author.derived import all_definitions
from moespec.conformance.functions import function

__all__ = ["CLASSES", "class_of", "kind"]

CLASSES = {
    "values": ("value", "degenerate"),
    "ties": ("tie", "near_tie"),
    "overflow": ("overflow",),
    "gradients": ("gradient",),
    "errors": ("negative",),
    "training": ("trajectory",),
    "models": (),
}
"""The classes of the format that each word stands for; `models` are whole models but for their training."""


def kind(id: str) -> str:
    """The class of the format of a case, by its id."""
    name = id.partition("/")[2]
    return large.LARGE[name].kind if name in large.LARGE else all_definitions()[id].kind


def class_of(id: str) -> str:
    """The word for a case, by its id."""
    stages = all_definitions()[id].stages if id in all_definitions() else ()
    if kind(id) != "trajectory" and any(function(stage.call).batched for stage in stages):
        return "models"
    return next(word for word, kinds in CLASSES.items() if kind(id) in kinds)
