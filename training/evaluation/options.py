"""The tables `[evaluation.NAME]` of a run's configuration."""

from dataclasses import dataclass
from typing import Literal

from moespec.models.checks import check_fields
from moespec.spec.errors import ConfigError
from moespec.spec.own import OwnName

__all__ = ["EvaluationConfig"]


@dataclass(frozen=True)
class EvaluationConfig:
    """An additional evaluation of a run: its measure, its images and its interval."""

    kind: Literal["head", "few_shot", "neighbours", "zero_shot", "retrieval"] | OwnName = "head"
    """head: precision of the model's head; few_shot: linear few-shot evaluation of its features; neighbours: nearest neighbours;
    zero_shot, retrieval: prompts and captions, with a text tower; or your own metric as package.module:function"""
    data: Literal["run", "digits", "npz", "idx", "cifar10", "cifar100", "folder", "pairs"] | OwnName = "run"
    """data set; run: the training data of the run; or your own as package.module:function"""
    path: str = ""
    """file or folder of the data set"""
    labels: str = ""
    """head: JSON file with the correct labels of each validation image, a list of lists"""
    prompts: str = ""
    """zero_shot: JSON file with class names and prompt templates, {"classes": [], "prompts": ["a {}"]}"""
    every: int = 1000
    """steps between these evaluations; the last step is always evaluated"""
    capacity_factor: float | None = None
    """capacity factor of the routers in this evaluation (default: the model's)"""
    shots: tuple[int, ...] = (10,)
    """few_shot: training images per class"""
    l2: tuple[float, ...] = (1024.0,)
    """few_shot: L2 regularisation; several values: use the value with the best mean rank over the seeds"""
    seeds: int = 3
    """few_shot: number of random draws of the training images"""
    neighbours: tuple[int, ...] = (20,)
    """neighbours: number of neighbours that vote"""
    temperature: float = 0.07
    """neighbours: a vote has the weight exp(cosine / temperature)"""

    def __post_init__(self) -> None:
        check_fields("", self)
        for name in ("every", "seeds", "shots", "neighbours"):
            value = getattr(self, name)
            if not value or (value if isinstance(value, int) else min(value)) < 1:
                raise ConfigError(f"{name}={_shown(value)!r}: expected integers >= 1")
        if not self.l2 or not all(0 < value < float("inf") for value in self.l2):
            raise ConfigError(f"l2={_shown(self.l2)!r}: expected numbers > 0")
        if not 0 < self.temperature < float("inf"):
            raise ConfigError(f"temperature={self.temperature!r}: expected a number > 0")
        if self.labels and self.kind != "head":
            raise ConfigError(f"labels={self.labels!r} has no effect unless kind='head', got kind={self.kind!r}")
        if bool(self.prompts) != (self.kind == "zero_shot"):
            raise ConfigError(f"prompts={self.prompts!r} is required for kind='zero_shot' and must be empty otherwise")
        if self.path and self.data == "run":
            raise ConfigError(f"path={self.path!r}: `data` is required with `path`")


def _shown(value: int | tuple[float, ...]) -> int | list[float]:
    return list(value) if isinstance(value, tuple) else value
