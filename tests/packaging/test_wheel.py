"""A wheel built from the tree works in an environment that has nothing else of it."""

import os
import subprocess
import sys
import textwrap
import tomllib
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ROOMS = ("spec", "backends", "models", "training", "conformance")
ALONE = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The interpreter of a new environment with the wheel and its base dependencies."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", folder, ROOT]
    log = subprocess.run(build, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    (folder / "build.log").write_text(log)
    (built,) = folder.glob("*.whl")
    venv.create(folder / "env", with_pip=True)
    interpreter = folder / "env/bin/python"
    subprocess.run([interpreter, "-m", "pip", "install", "--quiet", built], check=True, capture_output=True)
    return interpreter


def run(python, program):
    return subprocess.run(
        [python, "-c", program], capture_output=True, text=True, check=False, cwd=python.parent, env={}
    )


PROGRAM = """
    import importlib.util
    from pathlib import Path
    import moespec
    from moespec.conformance.suite import VECTORS
    from moespec.spec import ROUTERS

    print(moespec.__version__, moespec.spec.expert_capacity(196, 32, 1.0), "softmax_token_choice" in ROUTERS)
    # No folder of the tree becomes a top-level name.
    assert not [name for name in ROOMS if importlib.util.find_spec(name)]
    # What describes the vectors is there.
    for name in ("suite.json", "flags.json", "schema.json"):
        assert VECTORS.with_name(name).read_text() == (Path(ROOT) / "conformance" / name).read_text(), name
    # Adapters of other projects are of the clone alone.
    assert importlib.util.find_spec("moespec.conformance.peers") is None
"""


def test_what_is_in_the_wheel(python):
    result = run(python, textwrap.dedent(PROGRAM).replace("ROOT", repr(str(ROOT))).replace("ROOMS", str(ROOMS)))
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{PROJECT['version']} 7 True\n"


def test_without_a_framework_the_error_tells_what_to_install(python):
    result = run(python, "from moespec import backends; backends.name")
    assert result.returncode == 1
    assert "pip install 'moespec[jax]'" in result.stderr
    assert "pip install 'moespec[torch]'" in result.stderr


def test_vectors_and_data_ship_in_the_wheel(python):
    """And what the suite does without pytest, which it runs targets with, works."""
    results = []
    for command in ("show token_choice/tied", "run --algorithm token_choice"):
        words = (python, "-m", "moespec.conformance", *command.split(), "--target", "moespec.backends.numpy")
        results.append(subprocess.run(words, capture_output=True, text=True, check=False, cwd=python.parent))
    shown, run_ = results
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "float64 eager token_choice/slots: pass" in shown.stdout
    assert (run_.returncode, run_.stdout) == (2, "")
    assert run_.stderr == 'moespec conformance run needs pytest: pip install "moespec[conformance]"\n'


def test_templates_ship_in_the_wheel(python, tmp_path):
    command = [python, "-m", "moespec.conformance", "new", "numpy", "my_router"]
    subprocess.run(command, check=True, cwd=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"my_router.py", "test_my_router.py"}


def test_the_ledger_with_what_was_measured_ships_in_the_wheel(python):
    command = [python.parent / "moespec", "ledger", "--by", "pot"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "Measured: pot " in result.stdout


def test_it_is_built_without_a_warning_about_packages(python):
    log = (python.parents[2] / "build.log").read_text()
    assert "moespec/conformance/vectors" in log
    assert "Package would be ignored" not in log


CHECKED = """
import moespec
from moespec.backends.layer import layer_of
from moespec.spec import ROUTERS

reveal_type(ROUTERS["soft_moe"].options)
reveal_type(moespec.spec.expert_capacity(196, 32, 1.0))
layer_of(4, 4, 2, tokens=4, router="softmoe", group_images=1, gelu="erf", expert_init="shared", seed=0, router_options={})
"""


def test_a_type_checker_follows_an_editable_installation(tmp_path):
    """A plain one, in an environment with nothing else but NumPy; nothing of the tree becomes a top-level name."""
    venv.create(tmp_path / "env", with_pip=True)
    interpreter = tmp_path / "env/bin/python"
    install = [interpreter, "-m", "pip", "install", "--quiet"]
    subprocess.run([*install, "--no-deps", "-e", ROOT], check=True, capture_output=True)
    subprocess.run([*install, "numpy"], check=True, capture_output=True)
    program = f"from importlib.util import find_spec; print(*(find_spec(name) for name in {ROOMS}))"
    assert run(interpreter, program).stdout == "None None None None None\n"
    (tmp_path / "checked.py").write_text(CHECKED)
    mypy = [sys.executable, "-m", "mypy", "--python-executable", interpreter, "--config-file", "", "checked.py"]
    result = subprocess.run(mypy, capture_output=True, text=True, check=False, cwd=tmp_path, env=ALONE)
    assert 'Revealed type is "type[moespec.spec.routers.soft_moe.Options]"' in result.stdout, result.stdout
    assert 'Revealed type is "int"' in result.stdout
    assert """incompatible type "Literal['softmoe']"; expected "Literal['base', """ in result.stdout
    assert "Found 1 error in 1 file" in result.stdout
