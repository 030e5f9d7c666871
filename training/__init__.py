"""Trains and evaluates vision models, and writes reports about runs.

`moespec --help` lists the commands. From Python, `run = train("digits", run="runs/x")` does what `moespec train` does, `Run("runs/x")`
opens a run, and `load("runs/x")` returns a model with its trained weights. `pip install 'moespec[train]'` installs the dependencies.
Within moespec, only the command line imports this package.
"""

from typing import TYPE_CHECKING, Any

from moespec.spec.errors import ConfigError

if TYPE_CHECKING:
    from moespec.training.api import Run, load, train
else:

    def __getattr__(name: str) -> Any:
        """Imports a public name on first use, so that submodules can be imported even if packages of the extra are missing."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            from moespec.training import api
        except ModuleNotFoundError as error:
            raise ConfigError(f"{name} needs {error.name}: pip install 'moespec[train]'") from error
        return getattr(api, name)


__all__ = ["Run", "load", "train"]
