"""The application: everything that trains, evaluates, and reports on a vision model made of the core.

`moespec --help` lists its commands, and `load("runs/x")` gives a model with its trained weights. It needs
`pip install 'moespec[train]'`. Only the command line imports it.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from moespec.spec.errors import ConfigError

if TYPE_CHECKING:
    from moespec.training.weights.loading import Loaded

__all__ = ["load"]


def load(
    path: str | Path,
    *,
    backend: str | None = None,
    step: int | str | None = None,
    format: str | None = None,
    model: str | None = None,
    arguments: dict[str, Any] | None = None,
    **fields: Any,
) -> "Loaded":
    """The model at `path`, such as a run, with its weights; see `moespec.training.weights.loading.load`.

    Raises ConfigError if a package of the extra `train` is missing.
    """
    try:  # imported here, as the modules of this room do not need the weights of other projects
        from moespec.training.weights import loading
    except ModuleNotFoundError as error:
        raise ConfigError(f"load needs {error.name}: pip install 'moespec[train]'") from error
    return loading.load(path, backend=backend, step=step, format=format, model=model, arguments=arguments, **fields)
