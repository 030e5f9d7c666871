"""Which options of a run concern nothing unless others say so: one table, for every section of the configuration.

What a single section can tell by itself, it says itself: options that a router, an optimiser or a schedule does not have.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from moespec.models.data.dataset import Dataset
from moespec.models.data.options import DataConfig
from moespec.models.training.config import Config
from moespec.spec.errors import ConfigError
from moespec.spec.routers import ROUTERS

__all__ = ["TABLE", "check", "check_share"]


class Concern(NamedTuple):
    """Options (dotted names; one that ends in a dot: all of that section), when they concern a run, and why not if not."""

    options: tuple[str, ...]
    when: Callable[[Config], object]
    why: str


def _routed(config: Config) -> bool:
    return config.model.moe != "none"


def _takes_ids(config: Config) -> bool:
    return _routed(config) and ROUTERS[config.model.router or "soft_moe"].needs == "ids"


_OF_EXPERTS = ("router", "experts", "router_options.", "expert_init", "group_images", "group_tokens", "round_experts")

TABLE = (
    Concern(tuple(f"model.{name}" for name in _OF_EXPERTS), _routed, "model.moe is 'none'"),
    Concern(("model.token_ids", "model.codes", "hash."), _takes_ids, "the model has no router that needs token ids"),
    Concern(
        ("model.round_experts",),
        lambda config: config.model.dtype != "bfloat16" or not config.model.round_experts,
        "model.dtype is 'bfloat16' already",
    ),
    Concern(
        ("model.head_bias",),
        lambda config: config.training.loss == "sigmoid" or not config.model.head_bias,
        "with training.loss='softmax' a bias that all classes have changes nothing",
    ),
    Concern(
        tuple(f"data.{name}" for name in ("brightness", "contrast", "saturation", "hue")),
        lambda config: config.data.jitter,
        "data.jitter is 0",
    ),
    Concern(("data.magnitude",), lambda config: config.data.randaugment, "data.randaugment is 0"),
    Concern(("data.crop_area",), lambda config: config.data.crop != "middle", "data.crop is 'middle'"),
    Concern(("data.workers",), lambda config: config.data.name != "digits", "the digits have nothing to decode"),
    Concern(("init_skip",), lambda config: config.init is not None, "there is no init"),
)


def check(written: Iterable[str], *configs: Config) -> None:
    """ConfigError for the first option of `written` (dotted names) that is set and concerns none of the configurations."""
    for name in written:
        for options, when, why in TABLE:
            concerned = name in options or any(each.endswith(".") and name.startswith(each) for each in options)
            if concerned and not any(map(when, configs)) and (value := _value(configs[-1], name)) is not None:
                raise ConfigError(f"{name}={value!r} concerns nothing here: {why}")


def check_share(config: Config, dataset: Dataset) -> None:
    """ConfigError if the configuration says how many images are held out of a data set that holds out its own."""
    share = config.data.validation_share
    if share != DataConfig().validation_share and not dataset.held_out:
        raise ConfigError(f"data.validation_share={share!r} concerns nothing here: the data have a validation part")


def _value(config: Any, name: str) -> Any:
    """The value of a dotted name, None where there is no such field."""
    for part in name.split("."):
        config = getattr(config, part, None)
    return config
