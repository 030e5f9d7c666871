"""A wheel built from the tree works in an environment that has nothing else of it."""

import subprocess
import sys
import textwrap
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The interpreter of a new environment with the wheel and its base dependencies."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", folder, ROOT], check=True, capture_output=True
    )
    (built,) = folder.glob("*.whl")
    venv.create(folder / "env", with_pip=True)
    interpreter = folder / "env/bin/python"
    subprocess.run([interpreter, "-m", "pip", "install", "--quiet", built], check=True, capture_output=True)
    return interpreter


def run(python, program, **environment):
    return subprocess.run(
        [python, "-c", program], capture_output=True, text=True, check=False, cwd=python.parent, env=environment
    )


def test_the_specification_is_usable(python):
    result = run(
        python, "from moespec.spec import ROUTERS, expert_capacity; print(expert_capacity(196, 32, 1.0), *ROUTERS)"
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split()[0] == "7"
    assert "softmax_token_choice" in result.stdout.split()


@pytest.mark.parametrize("name", ["spec", "backends", "models", "conformance"])
def test_no_folder_becomes_a_top_level_name(python, name):
    result = run(python, f"import {name}")
    assert f"No module named '{name}'" in result.stderr


def test_without_a_framework_the_error_tells_what_to_install(python):
    result = run(python, "from moespec import backends; backends.name")
    assert result.returncode == 1
    assert "pip install 'moespec[jax]'" in result.stderr
    assert "pip install 'moespec[torch]'" in result.stderr


def test_the_numpy_backend_is_there_by_choice(python):
    result = run(python, "from moespec import backends; print(backends.name)", MOESPEC_BACKEND="numpy")
    assert result.stdout == "numpy\n", result.stderr


def test_vectors_and_data_ship_in_the_wheel(python):
    command = "-m moespec.conformance run --target moespec.backends.numpy --algorithm token_choice"
    result = subprocess.run([python, *command.split()], capture_output=True, text=True, check=False, cwd=python.parent)
    assert result.returncode == 0, result.stdout + result.stderr
    assert " 0 failed" in result.stdout.splitlines()[-1]


def test_templates_ship_in_the_wheel(python, tmp_path):
    command = [python, "-m", "moespec.conformance", "new", "numpy", "my_router"]
    subprocess.run(command, check=True, cwd=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"my_router.py", "test_my_router.py"}


@pytest.mark.parametrize("name", ["suite.json", "flags.json", "schema.json"])
def test_what_describes_the_vectors_ships_in_the_wheel(python, name):
    result = run(
        python, f"from moespec.conformance.engine.suite import VECTORS; print(VECTORS.with_name({name!r}).read_text())"
    )
    assert result.stdout.rstrip() == (ROOT / "conformance" / name).read_text().rstrip(), result.stderr


def test_a_type_checker_sees_the_names_of_the_specification(python):
    program = """
        import importlib
        from pathlib import Path
        from moespec import spec
        stub = Path(spec.__file__).with_name("__init__.pyi").read_text().splitlines()
        modules = [line.split()[1] for line in stub if line.endswith(" import *")]
        shown = {name for module in modules for name in importlib.import_module(module).__all__}
        assert shown == set(spec.__all__), shown ^ set(spec.__all__)
    """
    result = run(python, textwrap.dedent(program))
    assert result.returncode == 0, result.stderr


def test_the_command_line_starts(python):
    result = subprocess.run([python.parent / "moespec", "list"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "soft_moe" in result.stdout


def test_the_ledger_with_what_was_measured_ships_in_the_wheel(python):
    command = [python.parent / "moespec", "ledger", "--by", "pot"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "Measured: pot " in result.stdout
