"""What editors and type checkers see of an installed moespec: every public name, with its signature."""

import importlib
import json
import re
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(find_spec("pyright") is None, reason="needs pyright: pip install 'moespec[dev]'")
ROOT = Path(__file__).parents[2]
PACKAGES = ("spec", "backends.jax", "backends.torch", "backends.numpy", "backends.torch.nn", "models")
TWENTY = """
    import moespec.spec.algorithms.token_choice as algorithm
    from moespec import spec
    from moespec.spec import ROUTERS
    from moespec.spec import Routing
    from moespec.spec import expert_capacity
    from moespec.spec import sinkhorn_affinity
    from moespec.spec import token_choice
    from moespec.spec.routers import soft_moe
    from moespec.backends import jax
    from moespec.backends.jax import SlotRouting
    from moespec.backends.jax import balance_loss
    from moespec.backends.jax import expert_choice
    from moespec.backends.jax import moe_mlp
    from moespec.backends.torch import collapse_metrics
    from moespec.backends.torch.nn import ExpertParallel
    from moespec.backends.torch.nn import MoE
    from moespec.backends.torch.nn import auxiliary_loss
    from moespec.backends.torch.nn import update_states
    from moespec.models import list_models
    from moespec.conformance.record import explain
"""
NUMPY = re.compile(
    r"_Buffer \| _SupportsArray\[dtype\[Any\]\] \| _NestedSequence\[_SupportsArray\[dtype\[Any\]\]\] \| complex \| bytes \| str"
    r" \| _NestedSequence\[complex \| bytes \| str\]|ndarray\[tuple\[Any, \.\.\.\], dtype\[(?:Any|\w+\[[\w| ]+\])\]\]"
)
"""NumPy's own types: what becomes an array, and an array of any shape."""


@pytest.fixture
def checked(tmp_path):
    """Checks a program as an editor does, and returns the errors and the types that it reveals, by the line."""
    for framework in ("jax", "torch"):
        pytest.importorskip(framework)

    def check(program):
        (tmp_path / "program.py").write_text(program)
        command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "program.py"]
        result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert result.stdout.startswith("{"), result.stderr + result.stdout
        found = json.loads(result.stdout)["generalDiagnostics"]
        by_line = {each["range"]["start"]["line"]: each for each in found}
        errors = {line: each["message"] for line, each in by_line.items() if each["severity"] != "information"}
        types = {line: each["message"] for line, each in by_line.items() if each["severity"] == "information"}
        shown = {line: re.fullmatch(r'Type of ".*?" is "(.*)"', text, re.DOTALL) for line, text in types.items()}
        return errors, {line: NUMPY.sub("NumPy", text[1]) for line, text in shown.items()}

    return check


def test_twenty_imports_have_full_types(checked):
    imports = textwrap.dedent(TWENTY).strip().splitlines()
    names = [line.split()[-1] for line in imports]
    assert len(names) == 20
    errors, types = checked("\n".join((*imports, *(f"reveal_type({name})" for name in names))))
    assert errors == {}
    shown = dict(zip(names, types.values(), strict=True))
    assert not [name for name, text in shown.items() if re.search("Any|Unknown", text)], shown
    assert shown["algorithm"] == 'Module("moespec.spec.algorithms.token_choice")'
    assert shown["expert_capacity"].startswith(
        "(tokens: int, experts: int, factor: float, *, choices: int = 1, rounding:"
    )
    assert shown["sinkhorn_affinity"].startswith("(logits: NumPy, *, ")
    assert shown["balance_loss"] == "(scores: Array, load: Array | None = None, *, choices: int = 1) -> Array"
    assert shown["expert_choice"].endswith("drop_zero: bool = False) -> SlotRouting")
    assert shown["collapse_metrics"] == "(routing: SlotRouting | SoftRouting) -> dict[str, Tensor]"


def test_every_public_name_has_a_type(checked):
    modules = {f"moespec.{name}": importlib.import_module(f"moespec.{name}") for name in PACKAGES}
    names = [f"{module}.{name}" for module in modules for name in modules[module].__all__]
    errors, types = checked(
        "\n".join((*(f"import {module}" for module in modules), *map("reveal_type({})".format, names)))
    )
    assert errors == {}
    shown = dict(zip(names, types.values(), strict=True))
    assert len(shown) > 550
    assert not {name: text for name, text in shown.items() if text == "Any" or "Unknown" in text}


MISSPELT = """
from moespec.spec import ROUTERS, softmax_afinity
from moespec.backends import jax, torch
from moespec.backends.jax import token_choise
from moespec.backends.torch.nn import Moe
from moespec.models import creat
from moespec import backend
jax.soft_routin
ROUTERS["softmoe"].options(width=4, experts=2, tokens=8)
ROUTERS["soft_moe"].options(width=4, experts=2, tokens=8, normalise=True)
torch.ROUTERS["switch"].options(width=4, experts=2, tokens=8, rounding="up")
jax.ROUTERS["hash"].options(width=4, experts=2)
torch.nn.MoE(4, 8, experts=2, tokens=8, router="softmoe")
"""


def test_what_is_misspelt_is_an_error(checked):
    errors, _ = checked(MISSPELT)
    lines = MISSPELT.splitlines()
    fine = {lines[line] for line in set(range(1, len(lines))) - set(errors)}
    assert fine == {"from moespec.backends import jax, torch"}


def test_what_is_right_is_no_error(checked):
    right = """
from moespec import models
from moespec.backends import jax
from moespec.spec import ROUTERS
def of(name: str) -> int:
    return ROUTERS[name].options(width=4, experts=2, tokens=8).experts
"""
    routers = importlib.import_module("moespec.spec").ROUTERS
    names = [f"reveal_type(ROUTERS[{name!r}].options)" for name in routers]
    errors, types = checked(right + "\n".join(names))
    assert errors == {}
    assert set(types.values()) == {"type[Options]"}
