"""Configurations as TOML: read a recipe, write the configuration of a run.

A table is a section of `moespec.training.configuration.config.Config`, a key one of its fields. Fields that a file leaves out keep
their values. TOML has no null: where a field may be None, the string "none" sets it so. The key `format` at the top says
how the file is written; the first files of version 0.1 have none.
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
"""Tables in tables that are looked into; a configuration has four."""
FORMER = {"data": "cache", "hash": "path"}
"""Fields that runs have and no configuration has any more, by section."""
FORMER_LOGS = ("mlflow", "trackio")
"""What `log` could name before."""
EVERY_ROUTER = {"sinkhorn_iterations", "norm_form", "selector_gamma"}
"""Options that the first files of version 0.1 have, of different routers."""
Section = TypeVar("Section")
flat = partial(flatten, separator=".")
"""The values of nested tables by their dotted key."""


def recipes() -> dict[str, str]:
    """Name of each recipe in the package and the first line of its comment."""
    return {path.stem: path.read_text().split("\n", 1)[0].lstrip("# ") for path in sorted(RECIPES.glob("*.toml"))}


def find_recipe(name: str) -> Path:
    """The path of a recipe: a TOML file, or the name of a recipe in the package."""
    for candidate in (Path(name), RECIPES / f"{name}.toml"):
        if isfile(candidate):
            return candidate
    raise ConfigError(
        f"config={name!r}: neither a file nor one of the recipes {', '.join(recipes())}{near_it(name, recipes())}"
    )


def digits() -> Config:
    """The recipe that commands take which are given no other."""
    return read(find_recipe("digits"))


def read(path: Path, base: Config | None = None, *, model: str | None = None, router: str | None = None) -> Config:
    """`base` (the defaults) with the fields that a TOML file sets; `model` and `router`, if given, win over the file.

    Data, optimiser, schedule and training are the file's alone: what it leaves out of them has its default, whatever `base` has.
    The options in the file are those of the router that it names. Of these, another router that wins takes over what is
    not a default.

    Raises ConfigError for a file that is not TOML, an unknown key (with the nearest known ones) or a value that the key
    cannot have, naming the file and the key.
    """
    table = _loaded(path)
    written = table.pop("format", None)
    if written not in (None, FORMAT):
        raise ConfigError(f"{path}: format={written!r}: expected {FORMAT}, or leave it out")
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
    """The configuration with another model or router, where they are names and the model has a router: what is set stays.

    section: "text" for the text tower.
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
    """What a file has, by dotted key."""
    return flat(_loaded(path))


def written(path: Path) -> list[str]:
    """The dotted keys of a file; `format` is one of a file that a run wrote, whatever version did."""
    table = _loaded(path)
    return [*flat(table), *(["format"] if _of_version_0_1(table) else [])]


def _loaded(path: Path) -> dict[str, Any]:
    """What is in a TOML file. Raises ConfigError for one that is not, or has what no configuration has."""
    try:
        table = tomllib.loads(read_file(path, RECORD).decode())
    except (ValueError, RecursionError) as error:  # ValueError: not UTF-8, not TOML, an integer of 4 300 digits
        raise ConfigError(f"{path}: not a TOML file ({error})") from error
    entries: list[tuple[int, str, Any]] = [(0, "", table)]
    while entries:
        depth, key, value = entries.pop()
        if isinstance(value, int) and value.bit_length() > 63:
            raise ConfigError(f"{path}: {key}: an integer of {value.bit_length() + 1} bits, expected at most 64")
        if isinstance(value, dict | list):
            if depth > DEPTH:
                raise ConfigError(f"{path}: {key}: nested deeper than {DEPTH} tables")
            parts = value.items() if isinstance(value, dict) else enumerate(value)
            entries += [(depth + 1, f"{key}.{name}" if key else str(name), part) for name, part in parts]
    return table


def with_decay(table: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a run, where one that is older than the field `optimizer.decay` has what decayed then.

    That was Soft MoE's slots, but not its scale, and no kernel that is called other than that.
    """
    optimizer = table.get("optimizer")
    if not isinstance(optimizer, dict) or not isinstance(rate := optimizer.get("weight_decay"), int | float):
        return dict(table)
    older = f"(^|/)(kernel|w1|w2|slots)$={rate}, .*=0"
    return {**table, "optimizer": {"decay": older, **optimizer}}


def with_eval_take(table: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a run, where one that is older than the option `eval_take` takes tokens at evaluation as it did."""
    older = {
        name: {**section, "router_options": {"eval_take": "above", **options}}
        for name in ("model", "text")
        if isinstance(section := table.get(name), dict) and section.get("router") == "batch_expert_choice"
        if isinstance(options := section.get("router_options", {}), dict)
    }
    return {**table, **older}


def without_jitter(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration of a run without what an early 0.1 wrote for every router, and only `switch` had then."""
    if not _of_version_0_1(table) or table["model"].get("router") == "switch":
        return table
    options = {name: value for name, value in table["model"]["router_options"].items() if name != "jitter"}
    return {**table, "model": {**table["model"], "router_options": options}}


def _without_former(path: Path, table: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a run without what is gone; a warning names what was set."""
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
    """Whether an early 0.1 wrote it for a run: with the options of every router, as no router has all of `EVERY_ROUTER`."""
    section = table.get("model")
    options = section.get("router_options") if isinstance(section, dict) else None
    return isinstance(options, dict) and options.keys() >= EVERY_ROUTER


def dump(config: Config) -> str:
    """The configuration as TOML. Only fields that are None, and would be without a file, and sections of other objectives are left out."""
    import tomli_w  # here, since `moespec ledger` needs no extra

    objectives = [name for name in vars(config) if {LIT, MOCO}.intersection(marks(Config, name).get("only", ()))]
    tables = {name: of for name, of in asdict(config).items() if name not in objectives or not no_effect(config, name)}
    return tomli_w.dumps({"format": FORMAT, **_plain(tables, asdict(Config()))})


def update(section: Section, table: Mapping[str, Any], *, source: str = "", prefix: str = "") -> Section:
    """A dataclass with the fields of `table` replaced, recursively; errors name the file `source`, if any, and the dotted key."""
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
    """A section with other values; fields that stand for the same thing as one of these are None, as if not given.

    The name of another optimiser displaces the options of this one; a number of steps, epochs or examples the others.

    >>> changed(TrainingConfig(steps=5), {"epochs": 2.0}).steps
    """
    displaced: Sequence[str] = ()
    if isinstance(section, OptimizerConfig) and values.get("name", section.name) != section.name:
        displaced = section.options()
    if isinstance(section, TrainingConfig) and any(values.get(name) is not None for name in LENGTHS):
        displaced = LENGTHS
    return replace(section, **{**dict.fromkeys(displaced), **values})  # type: ignore[type-var]


def _tables(tables: Any, kind: type[Any], *, source: str, prefix: str) -> dict[str, Any]:
    """Tables of a user's own names, each the fields of the dataclass `kind`, or as it is if `kind` is none."""
    for name, table in tables.items() if isinstance(tables, dict) else [("", tables)]:
        if not isinstance(table, dict):
            found = f"{source}: {prefix}{'.' * bool(name)}{name}={table!r}".removeprefix(": ")
            raise ConfigError(f"{found}: expected tables, [{prefix}.NAME]")
    sections: dict[str, Any] = {}
    for name, table in tables.items():
        own = is_dataclass(kind)
        sections[name] = update(kind(), table, source=source, prefix=f"{prefix}.{name}.") if own else table
    return sections


def _checked(value: Any, hint: Any, where: str) -> Any:
    """`value` as the type of a field; an integer may stand for a float, "none" for None. A tuple is as a list, a path as a text."""
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
