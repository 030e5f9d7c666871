"""The choice of the backend at its first use, each case in a fresh process."""

import os
import subprocess
import sys
import textwrap
from importlib.util import find_spec

import pytest

FRAMEWORKS = ("jax", "torch")

# Makes modules invisible, as if they were not installed.
HIDE = """
import sys
class Without:
    def __init__(self, finder): self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in {hidden!r} else self.finder.find_spec(name, path, target)
sys.meta_path = [Without(finder) for finder in sys.meta_path if hasattr(finder, "find_spec")]
"""


def run(program, *, hidden=(), cwd=None, **environment):
    """The finished process of a Python program, in which the modules `hidden` are not installed."""
    inherited = {key: value for key, value in os.environ.items() if key != "MOESPEC_BACKEND"}
    return subprocess.run(
        [sys.executable, "-c", HIDE.format(hidden=tuple(hidden)) + textwrap.dedent(program)],
        env={**inherited, **environment},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def output(program, **options):
    result = run(program, **options)
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


def error(program, **options):
    result = run(program, **options)
    assert result.returncode != 0
    assert "moespec.spec.errors.ConfigError" in result.stderr
    return result.stderr


def needs(*modules):
    missing = [module for module in modules if find_spec(module) is None]
    return pytest.mark.skipif(bool(missing), reason=f"without {', '.join(missing)}")


USED = "from moespec import backends; backends.name"
EACH = [pytest.param("jax", marks=needs("jax")), pytest.param("torch", marks=needs("torch")), "numpy"]
CHOSEN = "from moespec import backends; import sys; print(backends.name, *({'jax', 'torch'} & set(sys.modules)))"


@pytest.mark.parametrize("backend", EACH)
def test_the_variable_chooses(backend, tmp_path):
    """And no file is written."""
    environment = dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"), str(tmp_path))
    chosen = output(CHOSEN, cwd=tmp_path, MOESPEC_BACKEND=backend, PYTHONDONTWRITEBYTECODE="1", **environment)
    assert chosen == [backend, *({backend} - {"numpy"})]
    assert list(tmp_path.iterdir()) == []


@needs("jax", "torch")
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_framework_already_imported_is_chosen(framework):
    assert output(f"import {framework}; {CHOSEN}") == [framework, framework]


@pytest.mark.parametrize("only", EACH[:2])
def test_the_only_framework_installed_is_chosen(only):
    hidden = [framework for framework in FRAMEWORKS if framework != only]
    assert output(CHOSEN, hidden=hidden) == [only, only]


@pytest.mark.parametrize(
    ("hidden", "variables", "words"),
    [
        (FRAMEWORKS, {}, ("[jax]'", "[torch]'", "Installed: numpy", "MOESPEC_BACKEND=numpy")),
        (("optax", "torch"), {}, ("pip install 'moespec[jax]'",)),
        ((), {"MOESPEC_BACKEND": "tensorflow"}, ("'tensorflow'",)),
        (("torch",), {"MOESPEC_BACKEND": "torch"}, ("torch is not installed", "pip install 'moespec[torch]'")),
    ],
    ids=["none", "without optax", "unknown", "not installed"],
)
def test_what_is_not_there(hidden, variables, words):
    message = error(USED, hidden=hidden, **variables)
    assert all(word in message for word in words), message


@needs("jax", "torch")
@pytest.mark.parametrize("imported", ["", "import jax, torch; "])
def test_several_installed_and_not_one_imported(imported):
    program = "from moespec import backends; from moespec.training.loop.resolve import choose_backend as by_command"
    program = f"{imported}{program}; print(*by_command('auto'), backends.name)"
    assert output(program) == ["jax", *["the", "default", "when", "several", "are", "installed"], "jax"]


def test_a_variable_changed_later_is_an_error():
    program = """
        import os
        from moespec import backends
        print(backends.expert_capacity(196, 32, 1.0))
        os.environ["MOESPEC_BACKEND"] = "jax"
        from moespec.backends import expert_capacity
    """
    message = error(program, MOESPEC_BACKEND="numpy")
    assert "'jax'" in message
    assert "'numpy'" in message


@needs("jax", "torch")
def test_by_name_side_by_side_without_a_choice():
    program = """
        import moespec.backends.numpy as N
        import importlib
        J, T = (importlib.import_module(f"moespec.backends.{name}") for name in ("jax", "torch"))
        from moespec.backends import jax, torch, numpy
        assert (jax, torch, numpy) == (J, T, N)
        print(J.name, T.name, N.name, J.token_choice is not T.token_choice)
    """
    assert output(program) == ["jax", "torch", "numpy", "True"]


def test_from_import_and_dir_choose():
    program = """
        from moespec.backends import name, token_choice
        from moespec import backends
        import moespec.backends.numpy as B
        print(name, backends.token_choice is token_choice, dir(backends) == dir(B))
    """
    assert output(program, MOESPEC_BACKEND="numpy") == ["numpy", "True", "True"]


def test_a_module_of_the_package_chooses_nothing():
    program = """
        from moespec.backends.optimizer import OptimizerConfig
        import moespec.backends.binding, sys
        from moespec.backends import optimizer
        print(*({"jax", "torch", "moespec.backends.numpy"} & set(sys.modules)))
    """
    assert output(program, hidden=FRAMEWORKS) == []


def test_a_name_that_no_backend_has():
    result = run("from moespec import backends; backends.no_such_name", MOESPEC_BACKEND="numpy")
    assert "AttributeError" in result.stderr
    assert "no_such_name" in result.stderr
