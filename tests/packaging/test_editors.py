"""What editors and type checkers see of an installed moespec: every public name, with its signature."""

import importlib
import json
import re
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("pyright", reason="needs pyright: pip install 'moespec[dev]'")
pytest.importorskip("jax", reason="needs jax: pip install 'moespec[jax]'")
pytest.importorskip("torch", reason="needs torch: pip install 'moespec[torch]'")

PACKAGES = ("spec", "backends.jax", "backends.torch", "backends.numpy", "backends.torch.nn", "models")
IMPORTED = """
    import moespec.spec.algorithms.token_choice as algorithm
    from moespec.spec import ROUTERS
    from moespec.backends import jax
    from moespec.backends.torch.nn import MoE
"""
NUMPY = re.compile(
    r"_Buffer \| _SupportsArray\[dtype\[Any\]\] \| _NestedSequence\[_SupportsArray\[dtype\[Any\]\]\] \| complex \| bytes \| str"
    r" \| _NestedSequence\[complex \| bytes \| str\]|ndarray\[tuple\[Any, \.\.\.\], dtype\[(?:Any|\w+\[[\w| ]+\])\]\]"
)
"""NumPy's own types: what becomes an array, and an array of any shape."""


RIGHT = """
    MoE(4, 8, experts=2, tokens=8, router=ROUTERS["hash"])
    def experts(name: str) -> int:
        return ROUTERS[name].options(width=4, experts=2, tokens=8).experts
"""
WRONG = """
    from moespec import backend
    from moespec.spec import softmax_afinity
    from moespec.backends.jax import token_choise
    from moespec.backends.torch.nn import Moe
    from moespec.models import creat
    jax.soft_routin
    ROUTERS["softmoe"].options(width=4, experts=2, tokens=8)
    ROUTERS["soft_moe"].options(width=4, experts=2, tokens=8, normalise=True)
    jax.ROUTERS["hash"].options(width=4, experts=2)
    jax.ROUTERS["switch"].options(width=4, experts=2, tokens=8, rounding="up")
    MoE(4, 8, experts=2, tokens=8, router="softmoe")
"""


def lines(program):
    return textwrap.dedent(program).strip().splitlines()


def checked(folder, program):
    """Checks the lines of a program as an editor does: the errors and the types that it reveals, by the line."""
    (folder / "program.py").write_text("\n".join(program))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "program.py"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert result.stdout.startswith("{"), result.stderr + result.stdout
    found = {each["range"]["start"]["line"]: each for each in json.loads(result.stdout)["generalDiagnostics"]}
    errors = {program[line]: each["message"] for line, each in found.items() if each["severity"] != "information"}
    revealed = {line: each["message"] for line, each in found.items() if each["severity"] == "information"}
    return errors, {
        program[line]: re.sub('^Type of ".*?" is "(.*)"$', r"\1", NUMPY.sub("NumPy", text))
        for line, text in revealed.items()
    }


def test_every_public_name_has_its_type(tmp_path):
    """`Any` stands for trees of parameters and functions of the user's."""
    modules = {f"moespec.{name}": importlib.import_module(f"moespec.{name}") for name in PACKAGES}
    every = [f"{module}.{name}" for module in modules for name in modules[module].__all__]
    options = [f"ROUTERS[{name!r}].options" for name in modules["moespec.spec"].ROUTERS]
    reveal = [f"reveal_type({each})" for each in ("algorithm", *every, *options)]
    imported = [*lines(IMPORTED), *(f"import {module}" for module in modules)]
    errors, types = checked(tmp_path, [*imported, *reveal, *lines(RIGHT)])
    assert errors == {}
    shown = {line.removeprefix("reveal_type(")[:-1]: text for line, text in types.items()}
    assert not {name: shown[name] for name in every if shown[name] == "Any" or "Unknown" in shown[name]}
    assert {shown[name] for name in options} == {"type[Options]"}
    assert shown["algorithm"] == 'Module("moespec.spec.algorithms.token_choice")'
    assert shown["moespec.spec.expert_capacity"].startswith(
        "(tokens: int, experts: int, factor: float, *, choices: int = 1, "
    )
    assert shown["moespec.spec.sinkhorn_affinity"].startswith("(logits: NumPy, *, ")
    assert not [name for name in every if name.endswith("_choice") and "Any" in shown[name]]
    assert shown["moespec.backends.jax.balance_loss"] == (
        "(scores: Array, load: Array | None = None, *, choices: int = 1) -> Array"
    )
    assert (
        shown["moespec.backends.torch.collapse_metrics"] == "(routing: SlotRouting | SoftRouting) -> dict[str, Tensor]"
    )


def test_what_is_misspelt_is_an_error(tmp_path):
    wrong = lines(WRONG)
    errors, _ = checked(tmp_path, [*lines(IMPORTED), *wrong])
    assert set(errors) == set(wrong)
