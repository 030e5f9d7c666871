"""Which options of a run concern nothing unless others say so: one table, for every section of the configuration.

What a single section can tell by itself, it says itself: options that a router, an optimiser or a schedule does not have.
"""

import inspect
import os
from collections.abc import Callable, Iterable
from typing import Any, cast

from moespec.models.transformer import OF_BLOCK
from moespec.models.vit import OF_EXPERTS, OF_IDS
from moespec.spec.errors import ConfigError
from moespec.spec.routers import ROUTERS
from moespec.training.configuration.config import Config
from moespec.training.configuration.schedules import SCHEDULES
from moespec.training.data.dataset import Dataset
from moespec.training.data.datasets import PICTURES
from moespec.training.data.options import DataConfig

__all__ = ["check", "check_share", "unconcerned"]


def _ids(config: Config) -> bool:
    blocks: Any = getattr(config.model, "block", {})
    routers = [getattr(config.model, "router", None) or "soft_moe", *(own.get("router") for own in blocks.values())]
    by_ids = any(router.needs == "ids" and name in routers for name, router in ROUTERS.items())
    return getattr(config.model, "moe", "none") != "none" and by_ids


TABLE: tuple[tuple[str, tuple[str, ...], Callable[[Config], object], str], ...] = (
    ("model", OF_EXPERTS, lambda c: c.model.moe != "none", "model.moe is 'none'"),
    ("model", OF_IDS, _ids, "the model has no router that needs token ids"),
    ("hash", ("path", "kind", "images"), _ids, "the model has no router that needs token ids"),
    ("model", ("round_experts",), lambda c: c.model.dtype != "bfloat16", "model.dtype is 'bfloat16'"),
    ("model", ("head_bias",), lambda c: c.training.loss == "sigmoid", "training.loss is 'softmax', the same for any bias of all classes"),
    ("data", ("brightness", "contrast", "saturation", "hue"), lambda c: c.data.jitter, "data.jitter is 0"),
    ("data", ("magnitude",), lambda c: c.data.randaugment, "data.randaugment is 0"),
    ("data", ("crop_area",), lambda c: c.data.crop != "middle", "data.crop is 'middle'"),
    ("data", ("workers",), lambda c: c.data.name != "digits", "the digits have nothing to decode"),
    ("data", ("mixup", "cutmix", "label_smoothing"), lambda c: c.objective == "classification", "the objective has no targets"),
    ("moco", (), lambda c: c.objective == "moco", "the objective is not moco"),
    ("lit", (), lambda c: c.objective == "lit", "the objective is not lit"),
    ("text", (), lambda c: c.objective == "lit", "the objective is not lit"),
    ("text", (*OF_BLOCK, "group_texts"), lambda c: c.text.moe not in (None, "none"), "text.moe is 'none'"),
    ("lit", ("bias",), lambda c: c.lit.loss == "sigmoid", "lit.loss is 'softmax', which has no bias"),
    ("lit", ("end",), lambda c: c.lit.tokenizer, "there is no lit.tokenizer"),
    ("mesh", ("timeout",), lambda c: {"WORLD_SIZE", "SLURM_NTASKS"} & os.environ.keys(), "there is one process"),
    ("", ("init_skip",), lambda c: c.init, "there is no init"),
)  # fmt: skip
"""Section, options of it (all, where none is named), when they concern a run, and why they do not if they do not."""


UNCHECKED: tuple[tuple[str, tuple[str, ...], Callable[[Config], object]], ...] = (
    ("model", ("channels", "classes"), lambda c: c.data.name != "digits"),
    ("model", ("stem_depth",), lambda c: c.model.stem),
    ("model", ("group_images_sparse",), lambda c: c.model.router not in (None, "soft_moe")),
    ("data", ("path", "grey", "jitter", "blur", "solarise", "randaugment"), lambda c: c.data.name != "digits"),
    ("data", ("resize", "background", "broken", "cache", "workers"), lambda c: c.data.name in PICTURES),
    ("mesh", ("transport",), lambda c: c.mesh.expert > 1),
    ("training", ("loss",), lambda c: c.objective == "classification"),
    ("training", ("accumulate",), lambda c: c.objective == "classification"),
    ("optimizer", ("ema_steps",), lambda c: c.optimizer.ema is not None),
)
"""The same of options that others report: they depend on the data, or on the sizes of the model."""


def check(written: Iterable[str], *configs: Config) -> None:
    """ConfigError for the first option of `written` (dotted names) that is switched on and concerns none of the configurations."""
    for name in written:
        parts, value = name.split("."), cast(Any, configs[-1])
        for part in parts:
            value = getattr(value, part, None)
        section, option = parts[:2] if parts[1:] else ("", name)
        if value in (None, False, 0.0):
            continue
        for of, options, when, why in TABLE:
            if section == of and option in (options or (option,)) and not any(map(when, configs)):
                raise ConfigError(f"{name}={value!r} has no effect here: {why}")


def unconcerned(config: Config) -> set[str]:
    """The options (dotted names) that concern nothing in a configuration, which its help leaves out."""
    rows = [row[:3] for row in TABLE + UNCHECKED if row[0] != "model" or hasattr(config.model, row[1][0])]
    names = {f"{of}.{name}".strip(".") for of, options, when in rows if not when(config) for name in options or ("",)}
    names |= {f"optimizer.{name}" for name in config.optimizer.options() if name not in vars(config.optimizer.own)}
    known = inspect.signature(SCHEDULES[config.schedule.name]).parameters
    return names | {f"schedule.{name}" for name in vars(config.schedule) if name not in (*known, "name")}


def check_share(config: Config, dataset: Dataset) -> None:
    """ConfigError if the configuration says how many images are held out, and the data have a validation part."""
    share = config.data.validation_share
    if share != DataConfig().validation_share and not dataset.held_out:
        raise ConfigError(f"data.validation_share={share!r} has no effect here: the data have a validation part")
