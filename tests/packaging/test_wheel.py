"""A wheel built from the tree works in an environment that has nothing else of it."""

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
    program = textwrap.dedent(PROGRAM).replace("ROOT", repr(str(ROOT))).replace("ROOMS", str(ROOMS))
    command = [python, "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=python.parent, env={})
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{PROJECT['version']} 7 True\n"
    assert "Package would be ignored" not in (python.parents[2] / "build.log").read_text()


def test_vectors_and_data_ship_in_the_wheel(python):
    """With what was measured; and what the suite does without pytest, which it runs targets with, works."""
    ledger = [python.parent / "moespec", "ledger", "--by", "pot"]
    assert "Measured: pot " in subprocess.run(ledger, capture_output=True, text=True, check=True).stdout
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
    command = [python, "-m", "moespec.conformance", "new", "c", "in_c"]
    subprocess.run(command, check=True, cwd=tmp_path)
    assert (tmp_path / "moespec_vectors.h").read_text() == (ROOT / "conformance/readers/moespec_vectors.h").read_text()
