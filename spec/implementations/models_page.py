"""The page `docs/models.md`, which lists the published models of `models.json` by family."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from moespec.spec import LEDGER
from moespec.spec.errors import ConfigError
from moespec.spec.implementations.models import Model
from moespec.spec.names import near_it
from moespec.spec.routers import ROUTERS

__all__ = ["by_family", "call", "check_names", "head", "linked", "page", "said", "shown"]

HEAD = """# Models

<!-- Made by `python -m moespec.conformance.peers.models` (`nox -s models`) from the blocks of transformers. Do not edit. -->

{count} published models by name, from these families:
{families}.
For each model: the router, its options, the layer, and the answers to the questions of [the ledger](implementations.md). "Not
expressed" names what moespec does not compute. "256, 7168 x 2048" means 256 experts, tokens of width 7168 and experts of hidden width 2048.

```console
$ moespec ledger --model deepseek-v3          # one model, with its readings in full
$ moespec ledger --model deepseek-v3 --json   # for programs
```

The same by name in Python, here as a layer of a small vision model:

```python
from moespec.spec import ROUTERS

preset = ROUTERS.preset("deepseek-v3")
print(preset.router, preset.options, preset.layer, preset.sizes)
options = ROUTERS[preset.router].options(width=384, experts=preset.sizes["experts"], tokens=196, **preset.options)
```

With torch, `MoE(**preset.sizes, **preset.layer, tokens=196, router=preset.router, **preset.options)` is the layer. The layers
for JAX take the same arguments. In a small model, replace `width`, `hidden` and `experts`.

How the table is made: transformers {version} builds the block of each model with the model's experts and choices, narrow layers and random
weights. [The recorder](recording.md) names the router from the results of the gate for 256 tokens. Then a moespec layer with the block's
own weights computes the same tokens. In "checked", *layer* means that the layer returns the block's output (to 1e-4 of the
largest value), apart from "not expressed". *router* means that only the router was compared. Models without a check come from
the named source. Sizes are the defaults of transformers' configuration classes. Where the published model has other values,
"sizes from" gives their source and lists them.

A preset describes routing at evaluation: it has no capacity, noise or losses, which are a choice of training. A selection bias is
updated by the router's defaults. The table shows `softmax_token_choice` without the options that switch these off.
"""
OFF = ("capacity_factor", "noise_multiplier", "importance_weight", "load_weight", "bias_update_rate")
"""Options that switch off capacity, noise, losses and the updates of a bias."""


def check_names(model: Model) -> Model:
    """Returns `model`. Raises ConfigError if the specification does not have its router, an option of the router, or a reading."""
    known = [reading.id for entry in LEDGER.values() for reading in entry.readings]
    for reading in model.readings:
        if reading not in known:
            raise ConfigError(f"{model.name}: readings: {reading!r} is not in the ledger{near_it(reading, known)}")
    if model.router and model.router not in ROUTERS:
        raise ConfigError(f"{model.name}: router={model.router!r} is not a router{near_it(model.router, ROUTERS)}")
    sizes = {"width": model.width, "experts": model.experts, "tokens": model.experts}
    if model.router:
        try:
            ROUTERS[model.router].options(**sizes, **model.options)
        except ConfigError as error:
            raise ConfigError(f"{model.name}: options: {error}") from error
    return model


def page(version: str, models: Iterable[Model]) -> str:
    """Returns the page as Markdown. version: the version of transformers."""
    families = by_family(models)
    sections = (line for name, rows in families.items() for line in _section(name, rows, version))
    return "\n".join([head(version, families), *sections])


def by_family(models: Iterable[Model]) -> dict[str, list[Model]]:
    """Returns the models of each family, in the order of the table."""
    families: dict[str, list[Model]] = {}
    for model in models:
        families.setdefault(model.family, []).append(model)
    return families


def head(version: str, families: Mapping[str, list[Model]]) -> str:
    """Returns the text above the families. version: the version of transformers."""
    names = ", ".join(name for name in families if name != "Other models") + " and others"
    return HEAD.format(count=sum(map(len, families.values())), families=names, version=version)


def _section(family: str, rows: list[Model], version: str) -> Iterable[str]:
    yield f"## {family}\n"
    yield f"```console\n$ moespec ledger --model {rows[0].name}\n```\n"
    yield "| model | name | experts | router | layer | readings | checked | not expressed |\n|---|---|---|---|---|---|---|---|"
    for model in rows:
        router = f"`{call(model.router, shown(model.options))}`" if model.router else "none"
        layer = f"`{said(model.layer)}`" if model.layer else ""
        cells = (linked(model, version), f"`{model.name}`", _sizes(model), router, layer, ", ".join(model.readings))
        yield "| " + " | ".join([*cells, model.checked, "; ".join(model.not_expressed)]) + " |"
    yield ""


def shown(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that describe the model, without `OFF`."""
    return {name: value for name, value in options.items() if name not in OFF}


def call(router: str, options: Mapping[str, Any]) -> str:
    """Returns a router with its options as it is written in Python."""
    return f"{router}({said(options)})"


def said(options: Mapping[str, Any]) -> str:
    """Returns options as arguments in Python."""
    return ", ".join(f"{name}={'inf' if value == math.inf else repr(value)}" for name, value in options.items())


def _sizes(model: Model) -> str:
    return f"{model.experts}, {model.width} x {model.hidden}"


def linked(model: Model, version: str) -> str:
    """Returns the title of a model with a link to its block, and the source of its sizes. version: the version of transformers."""
    if not model.block:
        return f"{model.title} ({model.source})"
    folder, name = model.block.split(".")
    file = f"src/transformers/models/{folder}/modeling_{folder}.py"
    same = f", same block as `{model.same_as}`" if model.same_as else ""
    source = re.sub(r"https://\S+", r"[source](\g<0>)", model.source)
    same += f", sizes from {source}: `{said(model.config)}`" if model.config else ""
    return f"{model.title} ([{name}](https://github.com/huggingface/transformers/blob/v{version}/{file}){same})"
