"""Write the files of `moespec conformance new`, which are a starter target and its test."""

import json
import sys
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from shutil import copy
from string import Template

from moespec.conformance.compare import ALL_DTYPES, DTYPES
from moespec.conformance.suite import VECTORS
from moespec.spec.errors import ConfigError

__all__ = ["KINDS", "commands", "start"]

KINDS = {"torch": ".py", "jax": ".py", "numpy": ".py", "c": ".c", "dropless": ".py"}
"""Kinds of targets and their file suffixes. The kind `dropless` is a torch adapter for a dropless layer."""
TEMPLATES = Path(__file__).parent / "templates"
HEADER = Path(__file__).parent / "readers/moespec_vectors.h"
"""The C header that reads the vectors. `start` copies it next to a C target."""


def start(kind: str, name: str, folder: Path) -> list[Path]:
    """Writes a target `name`, which already passes some cases, and a test of the target. Returns the paths of the files.

    For C, also writes `moespec_vectors.h` unless the file exists.

    Raises ConfigError and writes nothing if the name is not valid for a new module or one of the files exists.
    """
    if not name.isidentifier() or not name.isascii() or iskeyword(name):
        raise ConfigError(f"name={name!r}: expected a module name of letters, digits and underscores, not a keyword")
    paths = [folder / f"{name}{KINDS[kind]}", folder / f"test_{name}.py"]
    for path in paths:
        if path.exists():
            raise ConfigError(f"name={name!r}: {path} already exists; choose another name")
    if kind != "c" and (name in sys.stdlib_module_names or find_spec(name) is not None):
        raise ConfigError(f"name={name!r}: the file would hide an existing module; choose another name")
    test = kind if kind in ("c", "dropless") else "module"
    templates = (f"{kind}{KINDS[kind]}", f"test_{test}.py")
    dtypes = json.dumps({"numpy": ["float64"], "dropless": [*ALL_DTYPES]}.get(kind, [*DTYPES]))
    for path, template in zip(paths, templates, strict=True):
        text = Template((TEMPLATES / f"{template}.template").read_text()).substitute(name=name, dtypes=dtypes)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    if kind == "c" and not (folder / HEADER.name).exists():
        paths.append(Path(copy(HEADER, folder)))
    return paths


def commands(kind: str, name: str) -> list[str]:
    """Returns the commands that the user can run next."""
    run = f"moespec conformance run --target {name} --algorithm softmax_affinity --class values,gradients"
    routers = "--algorithm softmax_token_choice sigmoid_token_choice"
    layer = [
        f"moespec conformance run --adapter {name} {routers}",
        f"moespec conformance run --adapter {name} {routers} --fresh 7 --size large --dtype f32,bf16,f16",
    ]
    files = [
        f"cc -O2 -o {name} {name}.c -lm && ./{name} {VECTORS.parent} out",
        "moespec conformance check out --algorithm softmax_affinity",
    ]
    first = {"c": files, "dropless": layer}.get(kind, [run])
    return [*first, f"python -m pytest test_{name}.py"]
