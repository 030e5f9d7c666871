"""The API reference outside the specification: public names of selected modules, with signatures and docstrings."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

from generator.docstrings import markdown
from generator.sources import head


class Room(NamedTuple):
    """A page: its title, its subject, and its modules with their names (default: `__all__`)."""

    title: str
    about: str
    modules: dict[str, tuple[str, ...]]


EVALUATION = ("evaluate", "options", "few_shot", "neighbours", "zero_shot", "slots")
OF_MODEL = ("named", "init", "forward", "moe_layers", "moe_noise", "parameter_count", "parameter_shapes")

ROOMS = {
    "api-models": Room(
        "Models",
        "Create models by name for a backend, or call the functions of a model's module.",
        {
            "moespec.models": (),
            "moespec.models.vit": ("VitConfig", *OF_MODEL),
            "moespec.models.mixer": ("MixerConfig", *OF_MODEL),
            "moespec.models.sparse_mlp": ("SparseMlpConfig", *OF_MODEL),
            "moespec.models.text": ("TextConfig", *OF_MODEL),
            "moespec.models.layers": ("Output", "CommonConfig", "BlocksConfig", "MoeLayer"),
            "moespec.training.weights.loading": (),
        },
    ),
    "api-layers": Room(
        "Layers",
        "The MoE layer that replaces an MLP, for torch, Flax nnx and Equinox.",
        {"moespec.backends.torch.nn": (), "moespec.backends.jax.nnx": (), "moespec.backends.jax.equinox": ()},
    ),
    "api-data": Room(
        "Data",
        "Data sets, their options, batches and augmentation.",
        {
            "moespec.training.data.datasets": (),
            "moespec.training.data.dataset": ("Dataset", "Split"),
            "moespec.training.data.options": ("DataConfig",),
            "moespec.training.data.loader": (),
            "moespec.training.data.augment": (),
        },
    ),
    "api-training": Room(
        "Training",
        "The training loop of `moespec train`, its configuration and its hooks.",
        {
            "moespec.training.api": (),
            "moespec.training.loop.train": (),
            "moespec.training.loop.hooks": (),
            "moespec.training.configuration.config": (),
            "moespec.backends.optimizer": ("OptimizerConfig",),
            "moespec.training.loop.resolve": (),
            "moespec.training.configuration.schedules": (),
            "moespec.training.loop.rundirectory": (),
        },
    ),
    "api-evaluation": Room(
        "Evaluation",
        "Accuracy, few-shot classification, nearest neighbours, zero-shot classification, retrieval.",
        {f"moespec.training.evaluation.{module}": () for module in EVALUATION},
    ),
}
"""The reference's pages."""


class Entry(NamedTuple):
    """A name with its signature and docstring."""

    name: str
    signature: str
    body: str


class Section(NamedTuple):
    """A module's name, docstring and entries."""

    name: str
    about: str
    entries: list[Entry]


def sections(room: Room) -> list[Section]:
    """The sections of a page."""
    found = []
    for name, names in room.modules.items():
        module = import_module(name)
        found.append(Section(name, markdown(inspect.getdoc(module) or ""), list(entries(module, names))))
    return found


def entries(module: ModuleType, names: tuple[str, ...] = ()) -> Iterator[Entry]:
    """Yield a module's functions, classes and the classes' public methods. Raises AttributeError for a missing name."""
    for name in names or module.__all__:
        value = getattr(module, name)
        if names and not callable(value):
            raise TypeError(f"{module.__name__}.{name}: expected a function or class")
        if inspect.isroutine(value) or inspect.isclass(value):
            yield Entry(name, _signature(value), markdown(inspect.getdoc(value) or ""))
        for method, member in vars(value).items() if inspect.isclass(value) else ():
            function: Any = getattr(member, "fget", None) or getattr(member, "__func__", member)
            if inspect.isfunction(function) and function.__doc__ and not method.startswith("_"):
                yield Entry(f"{name}.{method}", _signature(function), markdown(inspect.getdoc(function) or ""))


def _signature(value: Any) -> str:
    """A function's signature as written; for a class, its header, its fields and the signature of its `__init__`."""
    lines = textwrap.dedent(inspect.getsource(inspect.unwrap(value))).splitlines()
    node = ast.parse("\n".join(lines)).body[0]
    if not isinstance(node, ast.ClassDef):
        text = head(lines, node).removesuffix(":")
        return re.sub(r"\bself,\s*", "", text, count=1) if inspect.ismethod(value) else text
    own = node.body[1:] if ast.get_docstring(node) is not None else node.body
    fields = [each for each in own if isinstance(each, (ast.AnnAssign, ast.Expr))]
    parts = ["\n".join(lines[each.lineno - 1 : each.end_lineno]) for each in fields]
    methods = [each for each in own if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
    parts += [head(lines, each).removesuffix(":") for each in methods]
    return "\n".join([head(lines, node), *parts]).removesuffix(":")
