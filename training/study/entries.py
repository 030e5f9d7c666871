"""What a study compares: entries, each a configuration by a name.

An entry is written as a router (`soft_moe`), as `dense` for no MoE blocks, or as a name and any options of `moespec train`
(`hash2: --router hash --model.router-options.hashes 2`).
"""

import re
import shlex
from collections.abc import Sequence

from moespec.spec.errors import ConfigError
from moespec.spec.names import near_it
from moespec.spec.routers import ROUTERS
from moespec.training.commandline.chosen import check_written, chosen
from moespec.training.commandline.parse import Settings, parse
from moespec.training.configuration.config import Config

__all__ = ["DENSE", "entries"]

DENSE = "dense"


def entries(texts: Sequence[str], base: Config) -> dict[str, Config]:
    """The configurations of a study by name: `base` with the options of each entry. Raises ConfigError for a wrong entry."""
    configs: dict[str, Config] = {}
    for text in texts:
        name, colon, options = (part.strip() for part in text.partition(":"))
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
            raise ConfigError(f"routers={text!r}: expected a router, or NAME: OPTIONS (letters, digits, _ . - in NAME)")
        if name in configs:
            raise ConfigError(f"routers={text!r}: there is another entry {name!r}")
        if not colon and name not in (DENSE, *ROUTERS):
            known = f"expected {DENSE}, one of {', '.join(ROUTERS)}, or NAME: OPTIONS"
            raise ConfigError(f"routers={text!r}: {known}{near_it(name, (DENSE, *ROUTERS))}")
        try:
            words = shlex.split(options)
        except ValueError as error:
            raise ConfigError(f"routers={text!r}: {error}") from error
        flags = words if colon else ["--model.moe", "none"] if name == DENSE else ["--router", name]
        try:
            config = parse("study", Settings, flags, settings=chosen(flags, base)).settings
            if colon:
                check_written(flags, config)
                if name == DENSE and config.model.moe != "none":
                    raise ConfigError(f"model.moe={config.model.moe!r}: expected 'none', or another name than {name!r}")
                if name in ROUTERS and (router := config.model.router) != name:
                    raise ConfigError(f"model.router={router!r}: expected {name!r}, or another name than {name!r}")
            if config.training.seed != base.training.seed:
                raise ConfigError(f"training.seed={config.training.seed!r}: a study has seeds of its own, --seeds N")
            configs[name] = config
        except ConfigError as error:
            raise ConfigError(f"routers={text!r}: {error}") from error
    return configs
