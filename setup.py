"""What pyproject.toml cannot say: which packages there are, and stubs of what is derived from the modules.

setuptools finds no packages in folders that are mapped to other names by itself. The public names of the specification
and of a backend are collected when they are imported, which editors and type checkers do not do: an installed package has
an `__init__.pyi` beside each such `__init__.py`, made of the `__all__` of the modules. So are the names of the routers.
"""

import ast
import re
import tomllib
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
FOLDERS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
ROOMS = {package: folder for package, folder in FOLDERS.items() if package != "moespec"}
ONCE = "moespec.backends.once"
ARRAYS = {
    "moespec.backends.jax": "from jax import Array",
    "moespec.backends.torch": "from torch import Tensor as Array",
}
FACES = ("moespec.spec", "moespec.backends.jax", "moespec.backends.torch", "moespec.backends.numpy")


def folder(package: str) -> Path:
    """Where the modules of a package are."""
    room = next(name for name in ROOMS if package == name or package.startswith(f"{name}."))
    return ROOT.joinpath(ROOMS[room], *package.removeprefix(room).split("."))


def stub(package: str) -> str:
    """The public names of a package as imports from its modules."""
    modules = [path for path in folder(package).iterdir() if path.suffix == ".py" and path.stem != "__init__"]
    modules += [path.parent for path in folder(package).glob("*/__init__.py")]
    names = {path: public_names(path) for path in sorted(modules)}
    lines = [f"from {package}.{path.stem} import *" for path, public in names.items() if public]
    if package in ARRAYS:
        lines += [ARRAYS[package], *formulas()]
    if package != "moespec.spec":  # a backend also has what no module of its own has
        routers = [] if any("ROUTERS" in public for public in names.values()) else ["ROUTERS: dict[str, Router]"]
        lines += ["", "name: str", *routers, "", "def __getattr__(name: str) -> Any: ..."]
        lines = ["from typing import Any", "", "from moespec.spec.routers import Router", *lines]
    return "\n".join([*lines, "", "__all__: list[str]", ""])


def formulas() -> list[str]:
    """What is public of the formulas that are written once, without the array namespace, their first argument."""
    lines: list[str] = []
    for path in sorted(folder(ONCE).glob("*.py")):
        public = public_names(path)
        for node in ast.parse(path.read_text()).body if public else ():
            if isinstance(node, ast.ImportFrom) and not str(node.module).startswith(ONCE):
                lines.append(ast.unparse(node))
            elif isinstance(node, ast.FunctionDef) and node.name in public:
                del node.args.args[0]
                lines.append(
                    f"def {node.name}({ast.unparse(node.args)}) -> {ast.unparse(node.returns or ast.Constant(None))}: ..."
                )
    return lines


def router_names() -> str:
    """The type `RouterName` with the names of the modules that define a router."""
    modules = sorted((ROOT / "spec/routers").glob("*.py"))
    names = [path.stem for path in modules if re.search(r"^ROUTER = ", path.read_text(), re.MULTILINE)]
    return f"from typing import Literal\n\nRouterName = Literal[{', '.join(map(repr, names))}]\n"


def public_names(path: Path) -> list[str]:
    """What a module says is public of it."""
    tree = ast.parse((path / "__init__.py" if path.is_dir() else path).read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__":
            return list(ast.literal_eval(node.value))
    return []


class WithStubs(build_py):
    """Builds the packages and the stubs, which a strict editable installation has too.

    Adapters for other packages are run from a clone: an installation that is not editable has none.
    """

    def finalize_options(self) -> None:
        super().finalize_options()
        if not self.editable_mode:
            self.packages = [name for name in self.packages if not name.startswith("moespec.conformance.peers")]

    def run(self) -> None:
        super().run()
        for path, text in self.stubs().items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return [*super().get_outputs(include_bytecode), *map(str, self.stubs())]

    def stubs(self) -> dict[Path, str]:
        """The text of each stub, by the file that it is written to."""
        library = Path(self.build_lib)
        faces = {library.joinpath(*package.split("."), "__init__.pyi"): stub(package) for package in FACES}
        return {**faces, library / "moespec/spec/routers/names.pyi": router_names()}


setup(
    packages=[*FOLDERS, *(f"{name}.{inner}" for name, path in ROOMS.items() for inner in find_packages(path))],
    cmdclass={"build_py": WithStubs},
)
