"""The torch backend copied to a package of its own, with one small error: the suite says where and which."""

import importlib
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

SOURCE = Path(__file__).parents[3] / "backends"


@pytest.fixture
def changed(tmp_path, monkeypatch):
    """Makes a copy of the torch backend under another name, with one text replaced by another."""
    monkeypatch.syspath_prepend(tmp_path)

    def changed_(name, file, text, instead):
        package = shutil.copytree(SOURCE, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "jax", "numpy"))
        for path in package.rglob("*.py"):
            path.write_text(path.read_text().replace("moespec.backends", name))
        path = package / file
        assert path.read_text().count(text) == 1
        path.write_text(path.read_text().replace(text, instead))
        return f"{name}.torch"

    return changed_


def test_a_small_error_is_found_and_named(run, changed):
    right, wrong = "xp.top_indices(xp.wide(scores), tries)", "experts - 1 - xp.top_indices(scores.flip(2), tries)"
    name = changed("torch_copy", "once/allocations.py", right, wrong)
    assert run("run", "--target", name, "--dtype", "f64", "--algorithm", "soft_routing")[0] == 0
    status, printed, _ = run("run", "--target", name, "--dtype", "f64,f32", "--algorithm", "token_choice")
    assert status == 1
    assert re.search(r"^FAIL token_choice/\w+ \[float64 eager\] first at \w+/\w+", printed, re.MULTILINE)
    for dtype in ("float64", "float32"):
        (line,) = [
            line for line in printed.splitlines() if "ties_to_the_higher_expert: " in line and f"{dtype} eager" in line
        ]
        assert "token_choice" in line


def test_a_copy_leaves_the_original_whole(changed):
    original = importlib.import_module("moespec.backends.torch")
    scores = original.from_numpy(np.array([[[0.6, 0.4], [0.9, 0.1]]]))

    def chosen():
        return original.token_choice(scores, choices=1, capacity=1).token.tolist()

    assert chosen() == [[[0], [2]]]
    importlib.import_module(
        changed("torch_beside", "torch/gathers.py", "index.long(), place)", "index.long(), place + 1)")
    )
    assert chosen() == [[[0], [2]]]
