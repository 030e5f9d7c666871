"""The house keeps its arrows: who may import whom, without circles.

The test tree mirrors the source tree, no room has more lines than it may, and examples in docstrings hold."""

import ast
import doctest
import fnmatch
import importlib
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FRAMEWORKS = {"jax", "optax", "torch", "flax", "timm"}
FRONT, ROOMS = "src", ("spec", "backends", "models", "training", "conformance")
FOLDERS = (FRONT, *ROOMS)  # src/moespec is the package itself, with links to the rooms

# Folder -> what its modules must not import, in a statement or through importlib.
FORBIDDEN = {
    "spec": {"moespec.backends", "moespec.models", "moespec.training", "moespec.conformance", *FRAMEWORKS},
    "backends/numpy": {
        *("moespec.backends.jax", "moespec.backends.torch", "moespec.models", "moespec.conformance"),
        *FRAMEWORKS,
    },
    "backends/common": {
        *("moespec.backends.jax", "moespec.backends.torch", "moespec.backends.numpy"),
        *("moespec.models", "moespec.conformance", *FRAMEWORKS),
    },
    "backends/jax": {"moespec.backends.torch", "moespec.models", "moespec.conformance", "torch"},
    "backends/torch": {"moespec.backends.jax", "moespec.models", "moespec.conformance", "jax", "optax"},
    "backends": {"moespec.models", "moespec.training", "moespec.conformance"},
    "models": {"moespec.training", "moespec.conformance", *FRAMEWORKS},
    "training": {"moespec.conformance", *FRAMEWORKS},
    "src": FRAMEWORKS,  # it stands above all rooms
    "conformance": {"moespec.backends.jax", "moespec.backends.torch", "moespec.training", *FRAMEWORKS},
    "conformance/peers/models.py": {"moespec.backends.jax", "moespec.training"},  # it runs blocks of transformers
    "conformance/record/layer.py": {"moespec.backends.jax", "moespec.training"},  # it runs blocks of torch
    "conformance/peers/adapters": {"moespec.models"},  # an adapter is of a package of a framework
}


def modules() -> dict[str, Path]:
    """The name of each of our modules, and its file."""
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    names = {path: path.relative_to(ROOT).with_suffix("").parts for path in files}
    parts = {path: name[2:] if name[0] == FRONT else name for path, name in names.items()}
    return {".".join(("moespec", *part)).removesuffix(".__init__"): path for path, part in parts.items()}


MODULES = modules()


def imports(path: Path, module: str = "") -> set[str]:
    """Every name that the file imports, at any depth: in a statement, or through importlib.

    A name that is put together at run time has a star for each part that is not known: `moespec.backends.*`.
    """
    tree = ast.parse(path.read_text())
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module or ''}.{alias.name}".strip(".") for alias in node.names}
            if node.level:
                found.add("a relative import")
    return found | {name for name in _loaded(tree, module) if not name.startswith("*")}


def _loaded(tree: ast.Module, module: str) -> Iterator[str]:
    """The names that calls of `import_module` load, and those that a package lists with `iter_modules(__path__, prefix)` to load them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name == "import_module":
                yield _text(node.args[0], module)
            elif name == "iter_modules" and len(node.args) > 1:
                yield f"{_text(node.args[1], module)}*"


def _text(node: ast.expr, module: str) -> str:
    """The string that an expression makes, with a star for what is known at run time only."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(value, module) for value in node.values)
    if isinstance(node, ast.FormattedValue):
        return _text(node.value, module)
    if isinstance(node, ast.Constant):
        return str(node.value)
    return module if isinstance(node, ast.Name) and node.id == "__name__" else "*"


def reached(name: str, universe: Mapping[str, object]) -> set[str]:
    """The modules that an imported name stands for: itself, the one that has it, or all that a pattern fits."""
    if "*" in name:
        return set(fnmatch.filter(universe, name))
    while name and name not in universe:
        name = name.rpartition(".")[0]
    return {name} - {""}


def offences(folder: str, path: Path, module: str = "") -> set[str]:
    return {
        name
        for name in imports(path, module)
        for seen in ({name} | reached(name, MODULES) if "*" in name else {name})
        if name == "a relative import"
        or seen.split(".")[0] in FOLDERS
        or any(seen == banned or seen.startswith(f"{banned}.") for banned in FORBIDDEN[folder])
    }


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_arrows_of_import(folder):
    inner = [ROOT / other for other in FORBIDDEN if other.startswith(f"{folder}/")]
    files = {
        module: path
        for module, path in MODULES.items()
        if path.is_relative_to(ROOT / folder) and not any(path.is_relative_to(i) for i in inner)
    }
    assert files
    wrong = {module: found for module, path in files.items() if (found := offences(folder, path, module))}
    assert not wrong


WRONG = """
import importlib

def f(name):
    from moespec import backends
    import torch.nn
    importlib.import_module("moespec.conformance.suite")
    importlib.import_module(f"moespec.backends.{name}")
from models import vit
from . import x
"""


def test_the_arrow_check_can_fail(tmp_path):
    (tmp_path / "bad.py").write_text(WRONG)
    assert offences("spec", tmp_path / "bad.py") == {
        *("moespec.backends", "torch.nn", "moespec.conformance.suite", "moespec.backends.*"),
        *("models.vit", "a relative import"),
    }


def test_nothing_imports_the_front():
    """The package `moespec` itself has the version and the command line; its rooms import each other by their names."""
    front = {f"moespec{module}" for module in ("", ".__main__", ".cli", ".streams")}
    importing = {
        module
        for module, path in MODULES.items()
        if module not in front
        and front
        & set().union(*(reached(name, MODULES) for name in imports(path, module) if name.startswith("moespec")))
    }
    assert importing == set()


FLOORS = {
    "moespec.models": (
        *("errors", "shown", "options", "pages", "checks", "memory", "files", "tensors", "pytrees"),
        *("router_options", "parameters", "random_keys", "hashing", "layers", "experts"),
        *("mixer", "sparse_mlp", "transformer", "vit", "text", "families", "model", "counts"),
    ),
    "moespec.training": (
        *(
            "rng",
            "progress_bar",
            "compilation",
            "interruption",
            "data",
            "evaluation",
            "configuration",
            "objectives",
            "loop",
        ),
        *("interop", "weights", "transfer", "runs", "inspection", "reports", "planning", "pretrained"),
        *("commandline", "study", "commands", "api"),
    ),
    "moespec.conformance": (
        *("format", "manifest", "functions", "failure", "matrix_rows", "compare", "suite", "call"),
        *(
            "author",
            "cases",
            "golden",
            "coverage",
            "check",
            "report",
            "record",
            "peers",
            "scaffold",
            "archive",
            "plugin",
        ),
        "pytest",
        *("commandline", "__main__"),
    ),
}
"""The rooms of a package, lowest first; the package itself stands above them."""


def arrows_up(package: str, order: Sequence[str]) -> set[tuple[str, str]]:
    """The imports, also of functions, from a room of a package to one that comes later in the order, or to the package itself."""
    files = {name: path for name, path in MODULES.items() if f"{name}.".startswith(f"{package}.")}
    height = {f"{package}.{room}": index for index, room in enumerate(order)} | {package: len(order)}
    room = {module: ".".join(module.split(".")[:3]) for module in files}
    return {
        (module, other)
        for module, path in files.items()
        for name in imports(path, module)
        for other in reached(name, files)
        if height[room[other]] > height[room[module]]
    }


@pytest.mark.parametrize("package", FLOORS)
def test_rooms_import_lower_ones(package):
    assert arrows_up(package, FLOORS[package]) == set()
    assert arrows_up(package, FLOORS[package][::-1]), "the check can fail"


def circle(files: Mapping[str, Path]) -> list[str]:
    """Modules that import each other in a circle, the first again at the end; empty if there is none.

    A package does not count as imported by its modules, which name it only to be found.
    """
    edges = {
        module: set().union(*(reached(name, files) for name in imports(path, module))) - {module}
        for module, path in files.items()
    }
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def test_no_circle_of_imports():
    assert circle(MODULES) == []


@pytest.mark.parametrize(
    "back",
    [
        "from moespec.models.a import A",
        "import moespec.models.a",
        "def f():\n    from moespec.models import a",
        "import importlib\ndef f(name): importlib.import_module(f'moespec.models.{name}')",
        "import pkgutil\nfor module in pkgutil.iter_modules([], 'moespec.models.'): load(module.name)",
    ],
)
def test_the_circle_check_can_fail(tmp_path, back):
    (tmp_path / "a.py").write_text("from moespec.models.b import B")
    (tmp_path / "b.py").write_text("import os\nfrom moespec.spec import errors")
    files = {f"moespec.models.{name}": tmp_path / f"{name}.py" for name in "ab"}
    assert circle(files) == []
    (tmp_path / "b.py").write_text(back)
    assert set(circle(files)) == set(files)


def test_every_folder_with_modules_is_a_package():
    """setuptools finds packages by their `__init__.py`; a folder without one would be left out of the wheel."""
    links = {path.name: path.resolve() for path in (ROOT / "src/moespec").iterdir() if path.is_symlink()}
    assert links == {room: ROOT / room for room in ROOMS}
    folders = {path.parent for path in MODULES.values()}
    assert not [str(folder) for folder in folders if not (folder / "__init__.py").is_file()]


NAME = re.compile(r"""\b(?:jax|torch)(?:\.\w+)*(?:\._|, ['"]_| import (?:\w+, )*_)[a-zA-Z]\w*""")


def private_names(text: str) -> list[str]:
    """What a program uses of JAX and torch that begins with an underscore, by name or as a string."""
    tree = ast.parse(text)
    return NAME.findall("\n".join(map(ast.unparse, tree.body[ast.get_docstring(tree) is not None :])))


def test_private_names_of_others_are_in_one_module_each():
    """It says which versions they were tried with. A docstring of a module may name what users set."""
    found = {module for module, path in MODULES.items() if private_names(path.read_text())}
    assert found == {f"moespec.{room}.private" for room in ("backends.jax", "backends.torch")}


@pytest.mark.parametrize(
    "line",
    [
        *("import torch._dynamo", "from jax._src import xla_bridge", "torch._foreach_mul_([], 1)"),
        *("from torch import nn, _C", "getattr(torch, '_C', None)", "load('jax._src.config')"),
    ],
)
def test_the_check_of_private_names_can_fail(line):
    assert private_names(line)
    assert not private_names(line.replace("_", ""))


@pytest.mark.parametrize("module", [name for name, path in MODULES.items() if ">>> " in path.read_text()])
def test_examples_in_docstrings(module):
    outcome = doctest.testmod(importlib.import_module(module))
    assert outcome.attempted > 0 == outcome.failed


def test_no_assert_in_production():
    """Python -O skips them. What they check raises an error of its own, such as that of `moespec.spec.values.present`."""
    trees = {module: ast.walk(ast.parse(path.read_text())) for module, path in MODULES.items()}
    assert {module for module, tree in trees.items() if any(isinstance(node, ast.Assert) for node in tree)} == set()


WITHOUT_A_SOURCE = {"environments", "integrations", "kernels", "packaging"}
"""Folders of tests that are named for what surrounds the product, or for what is not one folder of it."""


def test_the_test_tree_mirrors_the_source_tree():
    """The tests of `training/loop` are in `tests/training/loop`."""
    folders = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")}
    assert {str(folder) for folder in folders if not (ROOT / folder).is_dir()} == WITHOUT_A_SOURCE


LINES = {
    **{"spec": 13_389, "backends": 15_136, "models": 3_431, "training": 15_667},
    **{"conformance": 23_493, "src": 282, "tests": 26_267, "benchmarks": 1_944},
    **{"docs": 1_716, "noxfile.py": 453},
}
"""How many lines of Python each room may have. Whoever needs more takes them from another room."""
ALL = 101_778


def test_rooms_have_no_more_lines_than_they_may():
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    counted: Counter[str] = Counter()
    for name in listed.split():
        if (ROOT / name).is_file():
            counted[name.partition("/")[0]] += len((ROOT / name).read_text().splitlines())
    over = [f"{room} has {n}, {n - LINES[room]} too many" for room, n in counted.items() if n > LINES.get(room, 0)]
    assert sum(LINES.values()) <= ALL
    assert not over, f"lines of Python, {counted.total()} in all: {'; '.join(over)}"
