"""`new`: the targets that it writes pass their tests as they are, and fail when they are made wrong."""

import re
import shutil
from pathlib import Path
from string import Template
from typing import Any

import pytest
from committed import of

from moespec.conformance.check.adapter import Adapter
from moespec.conformance.check.run import run_cases
from moespec.conformance.compare import DTYPES
from moespec.conformance.scaffold import KINDS, TEMPLATES

WRONG = {
    "torch": ("dim=2", "dim=1"),
    "jax": ("axis=2)", "axis=1)"),
    "numpy": ("exponentials.sum(axis=2", "exponentials.sum(axis=1"),
    "c": ("total += exp(logits[e] - largest)", "total += exp(logits[e])"),
    "dropless": ("hidden @ w2 + b2", "hidden @ w2"),
}
NEEDS = {"torch": "torch", "jax": "jax", "numpy": "numpy", "c": "numpy", "dropless": "torch"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_target_passes_and_can_fail(run, kind, tmp_path, monkeypatch, capsys):
    """In this process, where `python -m pytest` would have the folder among those of modules, too."""
    pytest.importorskip(NEEDS[kind])
    if kind == "c" and shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name, status, said in (("right", 0, " passed"), ("wrong", 1, "first at ")):
        made, printed, _ = run("new", kind, f"{name}_{kind}")
        assert made == 0
        assert printed.splitlines()[-1] == f"python -m pytest test_{name}_{kind}.py"
        source = tmp_path / f"{name}_{kind}{KINDS[kind]}"
        assert WRONG[kind][0] in source.read_text()
        if name == "wrong":
            source.write_text(source.read_text().replace(*WRONG[kind]))
        words = [
            "-q",
            "-p",
            "no:cacheprovider",
            "--capture=sys",
            *["-x"] * status,
        ]  # a failure is explained, which takes long
        assert pytest.main([*words, f"test_{name}_{kind}.py"]) == status
        assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a-b", "name='a-b': expected a module name of letters, digits and underscores, not a keyword"),
        ("../x", "name='../x': expected a module name of letters, digits and underscores, not a keyword"),
        ("json", "name='json': the file would hide an existing module; choose another name"),
        ("there", "name='there': test_there.py already exists; choose another name"),
    ],
)
def test_nothing_is_written_over(run, name, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test_there.py").write_text("kept")
    status, _, error = run("new", "numpy", name)
    assert status == 2
    assert said in error
    assert [path.name for path in tmp_path.iterdir()] == ["test_there.py"]
    assert (tmp_path / "test_there.py").read_text() == "kept"


SORTED = "torch.sort(selection, dim=1, descending=True, stable=True).indices"
WEIGHTED = "(gates[..., None] * outputs.to(gates.dtype)).sum(1)"
FAULTS = {
    "the bias is in the weights": ("gates = scores.gather", "gates = selection.gather"),
    "the sum is in bfloat16": (WEIGHTED, "sum((gates[..., None] * outputs).bfloat16().unbind(1))"),
    "the last segment is dropped": ("torch.cat(outputs)", "torch.cat([*outputs[:-1], 0 * outputs[-1]])"),
    "choices go back in the order in which they came": ("[torch.argsort(order)]", "[order]"),
    "equal scores go to the higher expert": (SORTED, "torch.sort(selection, stable=True).indices.flip(1)"),
}
"""Changes of the dropless layer that `new` writes."""


@pytest.mark.parametrize("fault", ["", *FAULTS])
def test_a_dropless_layer_is_checked_in_bfloat16(target, fault):
    pytest.importorskip("torch")
    right = Template((TEMPLATES / "dropless.py.template").read_text()).substitute(name="dropless")
    wrong = right.replace(*FAULTS[fault]) if fault else right
    assert (wrong == right) == (not fault)
    name = target(f"dropless_{len(wrong)}", wrong)
    ran = [
        result
        for router in ("softmax_token_choice", "sigmoid_token_choice")
        for result in run_cases(Adapter(name, DTYPES["bfloat16"]), of(router), "eager")
        if result.state != "not implemented"
    ]
    states = {result.id: result.state for result in ran}
    assert len([id for id in states if "dropless" in id]) == 7
    failed = [id for id, state in states.items() if state not in ("pass", "inconclusive")]
    assert (len(failed) > 1) == bool(fault), failed


def test_the_grouped_product_of_the_page_is_that_of_the_layer():
    torch = pytest.importorskip("torch")
    page = (Path(__file__).parents[2] / "docs/dropless.md").read_text()
    (block,) = re.findall(r"```python\n(import torch\n.*?)```", page, re.DOTALL)
    ours: dict[str, Any] = {}
    pages: dict[str, Any] = {}
    exec((TEMPLATES / "dropless.py.template").read_text(), ours)
    exec(block, pages)
    g = torch.Generator().manual_seed(0)
    shapes = {"w1": (4, 16, 32), "b1": (4, 32), "w2": (4, 32, 16), "b2": (4, 16)}
    params = {name: torch.randn(shape, generator=g).bfloat16() for name, shape in shapes.items()}
    x, experts = (
        torch.randn((9, 16), generator=g).bfloat16(),
        torch.tensor([[0, 3], [3, 2]] * 4 + [[2, 0]]),
    )  # none of 1
    first, second = (made["grouped_mlp"](x, experts, params, "tanh") for made in (ours, pages))
    torch.testing.assert_close(first, second)
