"""Reads and writes configurations as TOML: recipes, and the configuration of a run.

Each table is a section of `moespec.training.configuration.config.Config`, and each key is a field of the section. `update` keeps the
values of fields that a file does not set. Since TOML has no null, the string "none" sets an optional field to None. The top-level key
`format` gives the version of the file format; early files of version 0.1 lack this key.
"""

import os
import tomllib
import types
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from functools import partial
from os.path import isfile
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from moespec.backends.optimizer import OptimizerConfig
from moespec.models import text
from moespec.models.checks import check_names, described
from moespec.models.files import RECORD, read_file
from moespec.models.options import marks, no_effect
from moespec.models.pytrees import flatten
from moespec.models.router_options import RouterSection, named
from moespec.spec.errors import ConfigError
from moespec.spec.names import near, near_it
from moespec.spec.own import OwnName, is_own
from moespec.training.configuration.config import (
    LENGTHS,
    LIT,
    MOCO,
    Config,
    ModelConfig,
    ScheduleConfig,
    TrainingConfig,
)
from moespec.training.data.options import DataConfig

__all__ = [
    *("changed", "digits", "dump", "find_recipe", "flat", "read"),
    *("recipes", "update", "values", "with_decay", "with_eval_take", "with_model", "without_jitter", "written"),
]

RECIPES = Path(__file__).parents[1] / "recipes"
NONE = "none"
FORMAT = 2
DEPTH = 4
"""Maximum depth of nested tables that are read; a configuration has four levels."""
FORMER = {"data": "cache", "hash": "path"}
"""Fields of old configurations that no longer exist, by section."""
FORMER_LOGS = ("mlflow", "trackio")
"""Former values of `log`."""
EVERY_ROUTER = {"sinkhorn_iterations", "norm_form", "selector_gamma"}
"""Options that belong to different routers. Only files that early versions of 0.1 wrote contain all these options."""
Section = TypeVar("Section")
flat = partial(flatten, separator=".")
"""Converts nested tables to one flat dict from dotted keys to values."""


def recipes() -> dict[str, str]:
    """Returns the name of each recipe in the package, with the first line of the recipe's comment."""
    return {path.stem: path.read_text().split("\n", 1)[0].lstrip("# ") for path in sorted(RECIPES.glob("*.toml"))}


def find_recipe(name: str) -> Path:
    """Returns the path of a recipe. `name` is the path of a TOML file or the name of a recipe in the package."""
    for candidate in (Path(name), RECIPES / f"{name}.toml"):
        if isfile(candidate):
            return candidate
    raise ConfigError(
        f"config={name!r}: neither a file nor one of the recipes {', '.join(recipes())}{near_it(name, recipes())}"
    )


def digits() -> Config:
    """Returns the configuration of the recipe `digits`, the default of the commands."""
    return read(find_recipe("digits"))


def read(path: Path, base: Config | None = None, *, model: str | None = None, router: str | None = None) -> Config:
    """Returns `base` (by default, `Config()`) with the fields that a TOML file sets. `model` and `router` override the file.

    The sections data, optimizer, schedule and training come only from the file; fields that the file does not set get their defaults.
    Router options in the file apply to the file's router. If `router` replaces this router, options with default values are dropped.

    Raises ConfigError, naming the file and the key, for a file that is not TOML, an unknown key (suggesting similar keys) or an
    invalid value.
    """
    table = _loaded(path)
    written = table.pop("format", None)
    if written not in (None, FORMAT):
        raise ConfigError(f"{path}: format={written!r}: expected {FORMAT}, or no format entry")
    older = written is None and _of_version_0_1(table)
    if older or written is not None:
        table = _without_former(path, with_eval_take(with_decay(without_jitter(table))))
    fresh: Any = {"data": DataConfig(), "optimizer": OptimizerConfig(), "schedule": ScheduleConfig()}
    base, section = replace(base or Config(), **fresh, training=TrainingConfig()), table.get("model", {})
    if isinstance(tower := table.get("text", {}), dict):
        with named(f"{path}: ", ("text",)):
            base = with_model(base, tower.get("name"), tower.get("router"), section="text")
    if isinstance(section, dict):
        with named(f"{path}: ", ("model",)):
            base = with_model(base, section.get("name") or model, section.get("router") or router)
        if older or section.get("router_options") == {}:
            own = vars(getattr(base.model, "router_options", RouterSection()))
            options = {name: value for name, value in section["router_options"].items() if name in own}
            table["model"] = {key: of for key, of in {**section, "router_options": options}.items() if of != {}}
    return with_model(update(base, table, source=str(path)), model, router)


def with_model(config: Config, name: Any, router: Any, *, section: str = "model") -> Config:
    """Returns the configuration with another model or router; None keeps the model or router. Other fields keep their values.

    section: "model", or "text" for the text tower.
    """
    model: ModelConfig = getattr(config, section)
    if section == "text" and isinstance(name, str) and name not in (NONE, *text.NAMES):
        raise ConfigError(f"text.name={name!r}: expected a text model, one of {', '.join(text.NAMES)}")
    if isinstance(name, str) and name not in (NONE, model.name):
        model = model.but(name=name)
    if isinstance(router, str) and router != NONE and hasattr(model, "router"):
        model = model.but(router=router)
    return replace(config, **{section: model})  # type: ignore[arg-type]


def values(path: Path) -> dict[str, Any]:
    """Returns the values in a file by dotted key."""
    return flat(_loaded(path))


def written(path: Path) -> list[str]:
    """Returns the dotted keys in a file. Adds `format` if an early version of 0.1 wrote the file without this key."""
    table = _loaded(path)
    return [*flat(table), *(["format"] if _of_version_0_1(table) else [])]


def _loaded(path: Path) -> dict[str, Any]:
    """Returns the content of a TOML file. Raises ConfigError for other files, and for content that cannot be a configuration."""
    try:
        table = tomllib.loads(read_file(path, RECORD).decode())
    except (ValueError, RecursionError) as error:  # ValueError: not UTF-8, not TOML, or an integer of over 4 300 digits
        raise ConfigError(f"{path}: not a TOML file ({error})") from error
    entries: list[tuple[int, str, Any]] = [(0, "", table)]
    while entries:
        depth, key, value = entries.pop()
        if isinstance(value, int) and value.bit_length() > 63:
            raise ConfigError(f"{path}: {key}: the integer has {value.bit_length() + 1} bits, expected at most 64")
        if isinstance(value, dict | list):
            if depth > DEPTH:
                raise ConfigError(f"{path}: {key} is nested deeper than {DEPTH} tables")
            parts = value.items() if isinstance(value, dict) else enumerate(value)
            entries += [(depth + 1, f"{key}.{name}" if key else str(name), part) for name, part in parts]
    return table


def with_decay(table: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a run's configuration. If a file lacks `optimizer.decay`, this field gets the rule that applied before the field existed.

    By this rule, weight decay applies only to parameters named kernel, w1, w2 or slots, and thus not to the scale of Soft MoE.
    """
    optimizer = table.get("optimizer")
    if not isinstance(optimizer, dict) or not isinstance(rate := optimizer.get("weight_decay"), int | float):
        return dict(table)
    older = f"(^|/)(kernel|w1|w2|slots)$={rate}, .*=0"
    return {**table, "optimizer": {"decay": older, **optimizer}}


def with_eval_take(table: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a run's configuration. If `batch_expert_choice` lacks `eval_take`, sets the value that older versions used implicitly."""
    older = {
        name: {**section, "router_options": {"eval_take": "above", **options}}
        for name in ("model", "text")
        if isinstance(section := table.get(name), dict) and section.get("router") == "batch_expert_choice"
        if isinstance(options := section.get("router_options", {}), dict)
    }
    return {**table, **older}


def without_jitter(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a run's configuration without the field `jitter` that early versions of 0.1 wrote for routers other than `switch`."""
    if not _of_version_0_1(table) or table["model"].get("router") == "switch":
        return table
    options = {name: value for name, value in table["model"]["router_options"].items() if name != "jitter"}
    return {**table, "model": {**table["model"], "router_options": options}}


def _without_former(path: Path, table: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a run's configuration without the fields that no longer exist. Warns about each removed field that has a value."""
    rest, log = dict(table), table.get("log")
    names = log.split(",") if isinstance(log, str) else []
    gone: dict[str, Any] = {"log": ",".join(name for name in names if name in FORMER_LOGS)}
    if gone["log"]:
        rest["log"] = ",".join(name for name in names if name not in FORMER_LOGS)
    for section, key in FORMER.items():
        if isinstance(of := table.get(section), dict):
            gone[f"{section}.{key}"] = of.get(key)
            rest[section] = {name: value for name, value in of.items() if name != key}
    for name, value in gone.items():
        if value:
            warnings.warn(f"{path}: {name}={value!r} no longer has any effect; remove it", stacklevel=1)
    return rest


def _of_version_0_1(table: Mapping[str, Any]) -> bool:
    """Returns whether an early version of 0.1 wrote the file for a run. Only such a file has all router options in `EVERY_ROUTER`."""
    section = table.get("model")
    options = section.get("router_options") if isinstance(section, dict) else None
    return isinstance(options, dict) and options.keys() >= EVERY_ROUTER


def dump(config: Config) -> str:
    """Returns the configuration as TOML, without fields that keep the default None and without sections of other objectives."""
    import tomli_w  # imported here, since `moespec ledger` must work without the extra `train`

    objectives = [name for name in vars(config) if {LIT, MOCO}.intersection(marks(Config, name).get("only", ()))]
    tables = {name: of for name, of in asdict(config).items() if name not in objectives or not no_effect(config, name)}
    return tomli_w.dumps({"format": FORMAT, **_plain(tables, asdict(Config()))})


def update(section: Section, table: Mapping[str, Any], *, source: str = "", prefix: str = "") -> Section:
    """Returns a dataclass with the fields in `table` replaced, recursively. Errors name the file `source`, if any, and the dotted key."""
    hints, known = get_type_hints(type(section)), [item.name for item in fields(section)]  # type: ignore[arg-type]
    lead = f"{source}: " if source else ""
    where = lead + prefix
    if owner := getattr(section, "owner", ""):
        check_names(where, table, owner, known)
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            alike = [prefix + name for name in near(key, known) or known]
            raise ConfigError(f"{lead}unknown key {prefix + key!r}; did you mean {', '.join(alike)}?")
        current = getattr(section, key)
        if get_origin(hints[key]) is Mapping:
            values[key] = _tables(value, get_args(hints[key])[1], source=source, prefix=f"{prefix}{key}")
        elif not is_dataclass(current):
            values[key] = _checked(value, hints[key], f"{where}{key}")
        elif isinstance(value, dict):
            values[key] = update(current, value, source=source, prefix=f"{prefix}{key}.")
        else:
            raise ConfigError(f"{where}{key}={value!r}: expected a table, [{prefix}{key}]")
    with named(lead, (prefix.partition(".")[0],)), named(prefix, known):
        return changed(section, values)


def changed(section: Section, values: Mapping[str, Any]) -> Section:
    """Returns a section with changed values. Fields that conflict with the changes become None.

    A change of optimiser unsets the options of the previous optimiser. A value for steps, epochs or examples unsets the other two fields.

    >>> changed(TrainingConfig(steps=5), {"epochs": 2.0}).steps
    """
    displaced: Sequence[str] = ()
    if isinstance(section, OptimizerConfig) and values.get("name", section.name) != section.name:
        displaced = section.options()
    if isinstance(section, TrainingConfig) and any(values.get(name) is not None for name in LENGTHS):
        displaced = LENGTHS
    return replace(section, **{**dict.fromkeys(displaced), **values})  # type: ignore[type-var]


def _tables(tables: Any, kind: type[Any], *, source: str, prefix: str) -> dict[str, Any]:
    """Converts tables with user-defined names to dataclasses of type `kind`. If `kind` is not a dataclass, returns the tables unchanged."""
    for name, table in tables.items() if isinstance(tables, dict) else [("", tables)]:
        if not isinstance(table, dict):
            found = f"{source}: {prefix}{'.' * bool(name)}{name}={table!r}".removeprefix(": ")
            raise ConfigError(f"{found}: expected tables such as [{prefix}.NAME]")
    sections: dict[str, Any] = {}
    for name, table in tables.items():
        own = is_dataclass(kind)
        sections[name] = update(kind(), table, source=source, prefix=f"{prefix}.{name}.") if own else table
    return sections


def _checked(value: Any, hint: Any, where: str) -> Any:
    """Converts `value` to the type of a field: an integer to a float, "none" to None, a list to a tuple, and a string to a path."""
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    for option in options:
        if get_origin(option) is Literal:
            if value in get_args(option):
                return value
        elif option is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        elif get_origin(option) is tuple:
            if isinstance(value, list | tuple):
                return tuple(_checked(item, get_args(option)[0], where) for item in value)
        elif type(value) is option or (option is OwnName and is_own(value)):
            return value
        elif option in (str, Path) and isinstance(value, str | os.PathLike):
            return option(os.fspath(value))
    if value == NONE and type(None) in options:
        return None
    raise ConfigError(f"{where}={value!r}: expected {described(hint, repr(NONE))}")


def _plain(table: dict[str, Any], default: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            plain[key] = _plain(value, default.get(key, {}))
        elif value is not None:
            plain[key] = value
        elif default.get(key) is not None:
            plain[key] = NONE
    return plain
