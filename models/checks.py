"""Checks user settings: the sections of a configuration, and the paths of output files."""

import difflib
import importlib.util
import os
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from moespec.models.errors import RunError
from moespec.spec.errors import ConfigError
from moespec.spec.own import OwnName, own_name, raised
from moespec.spec.ranges import WORDS, Range, check, option_types

__all__ = [
    "OWN",
    "Natural",
    "Number",
    "Share",
    "called",
    "check_fields",
    "check_installed",
    "check_names",
    "check_output",
    "check_sources",
    "check_value",
    "described",
]

Natural = Annotated[int, Range(0, 10**18)]
Number = Annotated[int, Range(1, 10**18)]
Share = Annotated[float, Range(0, 1, below=False)]
OWN = (
    *("checkpoints", "config.toml", "classes.json", "metrics.jsonl", "tensorboard", "features.safetensors"),
    "trackers.json",
)
"""The names of the files and folders in a run's folder, except the report."""


def check_fields(section: str, config: Any) -> None:
    """Replaces user-defined objects in `config` by names. Raises ConfigError for values outside their `Range`. section: its name, or ""."""
    kind: Any = type(config)
    for name, hint in option_types(kind).items():
        if OwnName in get_args(hint) and not isinstance(value := getattr(config, name), str):
            object.__setattr__(config, name, own_name(f"{section}.{name}".lstrip("."), value))
        if any(isinstance(mark, Range) for part in (hint, *get_args(hint)) for mark in get_args(part)):
            check_value(f"{section}.{name}".lstrip("."), getattr(config, name), hint)


def check_value(name: str, value: Any, hint: Any) -> None:
    """Raises ConfigError unless `value` has the type `hint` of the field `name`."""
    try:
        check(name, value, hint)
    except ConfigError as error:
        expected = str(error).removeprefix(f"{name}: ").removesuffix(f", got {value!r}")
        raise ConfigError(f"{name}={value!r}: {expected}") from None


def check_names(prefix: str, options: Mapping[str, object], owner: str, known: Collection[str]) -> None:
    """Raises ConfigError for an option that `owner`, a model or router, does not have. prefix: the text before the name in the error."""
    for name, value in options.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, cutoff=0.75)
            has = f"did you mean {', '.join(near)}?" if near else f"it has {', '.join(known) or 'none'}"
            raise ConfigError(f"{prefix}{name}={value!r}: {owner} does not have this option; {has}")


def check_installed(argument: str, package: str, extra: str) -> None:
    """Raises ConfigError, naming the moespec extra to install, if the package that `argument` needs is not installed."""
    if importlib.util.find_spec(package) is None:
        raise ConfigError(f"{argument}: {package} is not installed. Install it: pip install 'moespec[{extra}]'")


def called(what: str, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """Calls a user's function and returns its result. Turns an exception into a ConfigError that begins with `what`."""
    try:
        return function(*given, **named)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{what}: raised {raised(error)}") from error


def described(hint: Any, none: str | None = None) -> str:
    """Describes the values that a field of this type accepts. none: the description of None; if empty, the result omits None.

    >>> described(float | None), described(tuple[int, ...]), described(bool | None, "'none'")
    ('a number', 'integers', "True or False or 'none'")
    """
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return described(parts[0], none)
    if origin in (Union, types.UnionType):
        return " or ".join(filter(None, (described(part, none) for part in parts)))
    if origin is Literal:
        return f"one of {', '.join(map(repr, parts))}"
    if origin is tuple:
        return described(parts[0]).removeprefix("an ").removeprefix("a ").removesuffix("s") + "s"
    return {**WORDS, float: "a number", Path: "a path"}.get(hint, none or "")


def check_output(name: str, path: Path, endings: Sequence[str] = (), sources: Iterable[Path] = ()) -> None:
    """Raises RunError, naming the option `name`, unless a file can be written at `path` without replacing an input or a file of a run.

    endings: the allowed endings of the file name; default: any ending. sources: the input files and folders.
    """
    if "\0" in str(path) or not path.parent.is_dir():
        raise RunError(f"{name}={str(path)!r}: the folder {str(path.parent)!r} does not exist")
    if path.is_dir():
        raise RunError(f"{name}={str(path)!r}: expected a file, got a folder")
    if path.exists() and not path.is_file():
        raise RunError(f"{name}={str(path)!r}: expected a regular file")
    if not os.access(path.parent, os.W_OK):
        raise RunError(f"{name}={str(path)!r}: its folder is not writable")
    if endings and path.suffix.lower() not in endings:
        raise RunError(f"{name}={str(path)!r}: expected a name ending in {' or '.join(endings)}")
    check_sources(name, path, sources)
    whole = path.resolve()
    for folder in whole.parents:
        begun = (folder / "config.toml").is_file() and (folder / "checkpoints").is_dir()
        if begun and whole.relative_to(folder).parts[0] in (*OWN, "report.html"):
            raise RunError(f"{name}={str(path)!r}: belongs to the run {str(folder)!r}; choose another path")


def check_sources(name: str, path: Path, sources: Iterable[Path]) -> None:
    """Raises RunError if `path` is an input file, or an existing file inside an input folder that is not a run."""
    whole = path.resolve()
    for source in (each.resolve() for each in sources if "\0" not in str(each)):
        within = source in whole.parents and whole.exists() and not (source / "config.toml").is_file()
        if whole == source or within:
            raise RunError(f"{name}={str(path)!r}: is an input and would be overwritten; choose another path")
