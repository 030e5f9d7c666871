"""The house keeps its arrows: who may import whom, and each backend runs with the other framework absent."""

import ast
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FRAMEWORKS = {"jax", "optax", "torch", "flax", "timm"}

# Folder -> what its modules must not import. Modules load a backend, a model or a target by name at run time only.
FORBIDDEN = {
    "spec": {"moespec.backends", "moespec.models", "moespec.conformance", *FRAMEWORKS},
    "backends/numpy": {"moespec.models", "moespec.conformance", *FRAMEWORKS},
    "backends/jax": {"moespec.models", "moespec.conformance", "torch"},
    "backends/torch": {"moespec.models", "moespec.conformance", "jax", "optax"},
    "backends": {"moespec.models", "moespec.conformance"},
    "models": {"moespec.conformance", *FRAMEWORKS},
    "conformance": {"moespec.backends", "moespec.models", *FRAMEWORKS},
    "conformance/peers/adapters": {"moespec.backends", "moespec.models"},  # an adapter is of a package of a framework
}
ROOMS = ("spec", "backends", "models", "conformance")


def imports(path: Path) -> set[str]:
    """Every module that the file names in an import statement, at any depth."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            found |= {module} | {f"{module}.{alias.name}" for alias in node.names}
            if node.level:
                found.add("a relative import")
    return found


def offences(folder: str, path: Path) -> set[str]:
    return {
        name
        for name in imports(path)
        if name == "a relative import"
        or name.split(".")[0] in ROOMS
        or any(name == banned or name.startswith(f"{banned}.") for banned in FORBIDDEN[folder])
    }


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_arrows_of_import(folder):
    inner = [ROOT / other for other in FORBIDDEN if other.startswith(f"{folder}/")]
    files = [path for path in sorted((ROOT / folder).rglob("*.py")) if not any(path.is_relative_to(i) for i in inner)]
    assert files
    wrong = {str(path.relative_to(ROOT)): found for path in files if (found := offences(folder, path))}
    assert not wrong


def test_the_arrow_check_can_fail(tmp_path):
    path = tmp_path / "bad.py"
    path.write_text(
        "def f():\n    from moespec import backends\n    import torch.nn\nfrom models import vit\nfrom . import x\n"
    )
    assert offences("spec", path) == {"moespec.backends", "torch.nn", "models", "models.vit", "a relative import"}


@pytest.mark.parametrize(
    ("backend", "absent"), [("jax", "torch"), ("torch", "jax"), ("numpy", "jax"), ("numpy", "torch")]
)
def test_a_backend_runs_without_the_other_framework(backend, absent):
    program = f"""
        import sys
        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] == {absent!r}:
                    raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
        sys.meta_path.insert(0, Absent())
        import numpy as np
        import moespec.backends.{backend} as B
        from moespec.models import vit
        config = vit.named("vit_tiny", moe="last_half", experts=4)
        logits = vit.forward(B, config, B.from_numpy(vit.init(config, 0)), B.from_numpy(
            np.zeros((2, config.image_size, config.image_size, config.channels), np.float32))).logits
        assert B.to_numpy(logits).shape == (2, config.classes)
        assert {absent!r} not in sys.modules
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=240, check=False
    )
    assert result.returncode == 0, result.stderr


def test_every_package_folder_is_in_the_wheel():
    """The list of packages in pyproject.toml names every folder that holds modules."""
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    on_disk = {
        "moespec." + ".".join(path.parent.relative_to(ROOT).parts)
        for room in ROOMS
        for path in (ROOT / room).rglob("__init__.py")
    }
    assert listed == on_disk
