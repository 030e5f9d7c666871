"""Defines the arguments that several commands share, and reads the configuration file, the model and the router before the main parser.

The model and the router determine which options exist, since each model and each router defines its own options.
"""

import argparse
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from os.path import isfile
from pathlib import Path
from typing import Any

from moespec.backends.optimizer_options import OPTIMIZERS
from moespec.models.checks import check_fields
from moespec.models.options import no_effect, option
from moespec.spec.errors import ConfigError
from moespec.spec.own import is_own
from moespec.training.configuration import configfile
from moespec.training.configuration.config import LENGTHS, TRACKERS, BackendName, Config
from moespec.training.configuration.modelconfig import SHORT
from moespec.training.configuration.own import load_named, trusted

__all__ = ["Configured", "OfRun", "Stored", "check_effect", "check_functions", "check_written", "chosen", "early"]


@dataclass(frozen=True, kw_only=True)
class Configured:
    """The arguments of a command that takes the configuration of a run."""

    config: Path | None = None
    """TOML file, or a built-in recipe (moespec list recipes)"""
    trust: str = option("", rare=True)
    """comma-separated objects in the run's config.toml that may be imported from your modules, as package.module:object"""
    settings: Config = field(default_factory=Config)


@dataclass(frozen=True, kw_only=True)
class Stored:
    """Arguments of a command that reads a run or weights."""

    step: int | str | None = None
    """checkpoint of a run: a step, or best (see training.keep_best) (default: the newest)"""
    trust: str = ""
    """comma-separated objects in the run or file that may be imported from your modules, as package.module:object"""


@dataclass(frozen=True, kw_only=True)
class OfRun(Stored):
    """Arguments of a command that reads a run."""

    run: Path = option(positional=True)
    """folder of the run"""
    backend: BackendName | None = None
    """compute framework (default: the backend of the run)"""

    def __post_init__(self) -> None:
        check_fields("", self)


def chosen(arguments: Sequence[str], default: Config) -> Config:
    """Returns the configuration of a file, of the run to resume, or `default`, before most options of the command line are applied.

    The configuration already uses the models, routers and optimiser of the command line. If the command line sets the length of the run,
    all fields `LENGTHS` are None. Raises ConfigError for an unusable file, and for an option that the file's model or router lacks.
    """
    known = early(arguments)
    names: Any = {"model": known["model"], "router": known["router"]}
    saved = Path(known["run"] or "") / "config.toml"
    if known["config"] is not None:
        path = configfile.find_recipe(known["config"])
        load_named(configfile.values(path), str(path))
        base = configfile.read(path, default, **names)
    elif known["resume"] and known["run"] and isfile(saved):
        base = configfile.read(saved, **names)
    else:
        base = configfile.with_model(default, known["model"], known["router"])
    base = configfile.with_model(base, known["text"], known["text_router"], section="text")
    if known["optimizer"] in OPTIMIZERS or is_own(known["optimizer"]):
        base = replace(base, optimizer=configfile.changed(base.optimizer, {"name": known["optimizer"]}))
    if any(known[name] is not None for name in LENGTHS):
        base = replace(base, training=configfile.changed(base.training, dict.fromkeys(LENGTHS)))
    return base


def check_written(arguments: Sequence[str], *configs: Config) -> None:
    """Raises ConfigError for an option of the command line or its configuration file that affects none of the resulting configurations.

    An option in the file is also accepted if it affects the file's configuration with the model and the router of the command line. The
    file may always set `init_skip`, for other runs with `init`. A file that a run wrote contains every field and is not checked.
    """
    words = (word.partition("=")[0][2:].replace("-", "_") for word in arguments if word.startswith("--"))
    check_effect([SHORT.get(word, word) for word in words], *configs)
    known = early(arguments)
    if known["config"] is None:
        return
    path = configfile.find_recipe(known["config"])
    if "format" not in (written := configfile.written(path)):
        own = configfile.read(path, model=known["model"], router=known["router"])
        check_effect((name for name in written if name != "init_skip"), own, *configs)


def check_effect(written: Iterable[str], *configs: Config) -> None:
    """Raises ConfigError for the first option of `written` (dotted names) that affects none of the configurations.
    Options with the default value, None, False or 0 are accepted."""
    for name in written:
        value, default = _value(configs[-1], name), _value(Config(), name)
        if value in (None, False, 0.0, default):
            continue
        reasons = [no_effect(config, name) for config in configs]
        if all(reasons):
            raise ConfigError(f"{name}={value!r} has no effect here: {reasons[-1]}")


def _value(config: Config, name: str) -> Any:
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


def check_functions(arguments: Sequence[str], config: Config) -> None:
    """Raises ConfigError if training would import a function that neither the command line nor its configuration file names.

    The name of such a function comes from a run to resume or fine-tune, and a third party may have written that run's configuration.
    """
    known, names = early(arguments), trusted(arguments)
    for name, value in config.functions.items() if not known["config"] else ():
        if known[name] is None and not set(value.split(",")).difference(TRACKERS).issubset(names):
            raise ConfigError(
                f"{name}={value!r}: the run's config.toml names code that training would import; "
                f"to trust it, add --{name} {shlex.quote(value)}"
            )


def early(arguments: Sequence[str]) -> dict[str, Any]:
    """Reads the options that determine the starting configuration. An absent option is None. The main parser reports missing values."""
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--resume", action="store_true")
    options = {"config": [], "run": [], "model": ["--model.name"], "router": ["--model.router"]}
    options |= {"text": ["--text.name"], "text_router": ["--text.router"]}
    options |= {"optimizer": ["--optimizer.name"], **{name: [f"--training.{name}"] for name in LENGTHS}}
    options |= {"data.transform": [], "log": []}
    for name, flags in options.items():
        early.add_argument(f"--{name}", *flags, nargs="?", dest=name)
    skipped = re.compile("-h|--help|--resume=.*", re.DOTALL)  # the main parser handles or rejects these options
    known, _ = early.parse_known_args([argument for argument in arguments if not skipped.fullmatch(argument)])
    return {name: None if value == "None" else value for name, value in vars(known).items()}
