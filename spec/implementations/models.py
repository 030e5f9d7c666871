"""Published models by name: the router, its options, the layer, the ledger readings, and what moespec does not express.

`models.json` is written by `python -m moespec.conformance.peers.models`, which records the blocks of transformers.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from moespec.spec.errors import ConfigError
from moespec.spec.names import near_it

__all__ = ["Model", "Sizes", "find_model", "models", "parsed", "transformers_version"]


class Sizes(NamedTuple):
    """The width of a token, the hidden width of an expert, and the number of experts of all kinds."""

    width: int
    hidden: int
    experts: int


@dataclass(frozen=True, kw_only=True)
class Model:
    """One row of the table.

    name: the name to look up. title: the published models that the row describes. family: the heading on the page.
    block: folder and class of the block in transformers, or "" for a block that transformers does not have.
    same_as: the model that has the same block with other sizes. config: published values that replace transformers' defaults.
    source: where the values of `config` were read or, without a block, the whole row.
    width, hidden, experts: as in `Sizes`. router, options: a router and its options, or "" and {} if no router computes the same.
    layer: arguments of the layer `MoE`. readings: ledger readings.
    checked: "layer" if a layer with the block's weights returns the block's output, "router" if only the router was recorded, or "".
    not_expressed: what the router and the layer here do not compute.
    """

    name: str
    title: str
    family: str
    block: str
    source: str
    same_as: str
    config: Mapping[str, Any]
    width: int
    hidden: int
    experts: int
    router: str
    options: Mapping[str, Any]
    readings: tuple[str, ...]
    layer: Mapping[str, Any]
    checked: str
    not_expressed: tuple[str, ...]

    @property
    def sizes(self) -> dict[str, int]:
        """The first three arguments of the layer `MoE`."""
        return {"width": self.width, "hidden": self.hidden, "experts": self.experts}


TYPES: Mapping[type | Any, Any] = {str: str, int: int, Mapping[str, Any]: dict, tuple[str, ...]: list}


def parsed(table: Any) -> dict[str, Model]:
    """Returns the models of a table by name.

    Raises ConfigError, which names the row and the field, for a damaged table: a missing or unknown field, a value of another type, a
    name that occurs twice, an unknown model, or a row without a router that does not say why. `check_names` checks the names of routers,
    options and readings.
    """
    rows = table.get("models") if isinstance(table, dict) else None
    if not isinstance(rows, list):
        raise ConfigError('models: expected {"transformers": VERSION, "models": [ROW, ...]}')
    found: dict[str, Model] = {}
    for i, row in enumerate(rows):
        model = _model(row if isinstance(row, dict) else {}, f"models[{i}]")
        if model.name in found:
            raise ConfigError(f"models[{i}]: name={model.name!r} occurs twice")
        found[model.name] = model
    for model in found.values():
        if model.same_as and model.same_as not in found:
            raise ConfigError(f"{model.name}: same_as={model.same_as!r}: expected the name of another row")
    return found


def _model(row: Mapping[str, Any], place: str) -> Model:
    place = row.get("name", place)
    hints = {each.name: each.type for each in fields(Model)}
    for name in [*hints, *row]:
        if name not in hints:
            raise ConfigError(f"{place}: {name} is not a field of a model{near_it(name, hints)}")
        if name not in row:
            raise ConfigError(f"{place}: the field {name} is missing")
        if type(row[name]) is not (kind := TYPES[hints[name]]):
            raise ConfigError(f"{place}: {name}={row[name]!r}: expected a value of type {kind.__name__}")
    options = {name: math.inf if value == "inf" else value for name, value in row["options"].items()}
    model = Model(**{**row, "options": options} | {n: tuple(row[n]) for n in ("readings", "not_expressed")})
    if model.checked not in ("", "router", "layer"):
        raise ConfigError(f"{place}: checked={model.checked!r}: expected 'layer', 'router' or ''")
    if not (model.block or model.source):
        raise ConfigError(f"{place}: block='' and source='': expected one of them")
    if model.config and not model.source:
        raise ConfigError(f"{place}: source='': expected where the values of config were read")
    if not (model.router or model.not_expressed):
        raise ConfigError(f"{place}: router='': expected the reason in not_expressed")
    return model


@cache
def _table() -> Any:
    return json.loads(files(__package__).joinpath("models.json").read_text(encoding="utf-8"))


@cache
def models() -> dict[str, Model]:
    """Returns the committed models by name."""
    return parsed(_table())


def transformers_version() -> str:
    """Returns the version of transformers whose blocks were recorded."""
    return str(_table()["transformers"])


def _letters(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())


def find_model(name: str) -> Model:
    """Returns the model with this name, in any spelling: "DeepSeek V3", "deepseek-v3". Raises ConfigError for an unknown name."""
    for model in models().values():
        if _letters(model.name) == _letters(name):
            return model
    raise ConfigError(
        f"model={name!r} is not in the table of models{near_it(name.lower(), models()) or ', see docs/models.md'}"
    )
