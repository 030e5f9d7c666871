"""The application: everything that trains, evaluates, and reports on a vision model made of the core.

`moespec --help` lists its commands. From Python, `run = train("digits", run="runs/x")` is `moespec train`, `Run("runs/x")` opens a
run, and `load("runs/x")` gives a model with its trained weights. It needs `pip install 'moespec[train]'`. Only the command line
imports it.
"""

from typing import TYPE_CHECKING, Any

from moespec.spec.errors import ConfigError

if TYPE_CHECKING:
    from moespec.training.api import Run, load, train
else:

    def __getattr__(name: str) -> Any:
        """Imports a public name when it is first used, as the modules of this room do not need all of the extra."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            from moespec.training import api
        except ModuleNotFoundError as error:
            raise ConfigError(f"{name} needs {error.name}: pip install 'moespec[train]'") from error
        return getattr(api, name)


__all__ = ["Run", "load", "train"]
