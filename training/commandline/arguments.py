"""Arguments that several commands have."""

from dataclasses import dataclass, field
from pathlib import Path

from moespec.models.options import option
from moespec.training.configuration.config import BackendName, Config

__all__ = ["Configured", "OfRun"]


@dataclass(frozen=True, kw_only=True)
class Configured:
    """The arguments of a command that takes the configuration of a run."""

    config: Path | None = None
    """a TOML file, or a recipe of the package (moespec list recipes)"""
    settings: Config = field(default_factory=Config)


@dataclass(frozen=True, kw_only=True)
class OfRun:
    """The arguments of a command that reads a run."""

    run: Path = option(positional=True)
    """folder of the run"""
    backend: BackendName | None = None
    """framework that computes (default: the run's)"""
    step: int | None = None
    """the checkpoint of this step instead of the newest"""
