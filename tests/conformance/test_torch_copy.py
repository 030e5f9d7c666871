"""The torch backend copied to a package of its own, with one small error each time: the suite says where and which."""

import importlib
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

SOURCE = Path(__file__).parents[2] / "backends"

# File, what stands there, what is put in its place, the algorithm it is seen in, and the known variant it is.
ERRORS = {
    "higher expert": (
        "once/allocations.py",
        "best = xp.top_indices(xp.wide(scores), tries)",
        "best = experts - 1 - xp.top_indices(scores.flip(2), tries)",
        "token_choice",
        "ties_to_the_higher_expert",
    ),
    "higher token": (
        "once/allocations.py",
        "xp.top_indices(columns, check_capacity(capacity, tokens))",
        "tokens - 1 - xp.top_indices(columns.flip(2), check_capacity(capacity, tokens))",
        "expert_choice",
        "ties_to_the_higher_token",
    ),
    "softmax axis": (
        "once/affinities.py",
        "xp.softmax(xp.wide(logits), 2)",
        "xp.softmax(xp.wide(logits), 1)",
        "softmax_affinity",
        "softmax_over_tokens",
    ),
    "rows first": (
        "once/affinities.py",
        "        new_column = math.log(column_mass) - xp.logsumexp(logits + row, 1, keepdims=True)\n"
        "        new_row = -xp.logsumexp(logits + new_column, 2, keepdims=True)\n",
        "        new_row = -xp.logsumexp(logits + column, 2, keepdims=True)\n"
        "        new_column = math.log(column_mass) - xp.logsumexp(logits + new_row, 1, keepdims=True)\n",
        "sinkhorn",
        "rows_first",
    ),
    "z of the mean": (
        "once/losses.py",
        "xp.mean(xp.square(xp.logsumexp(xp.wide(logits), 2)))",
        "xp.mean(xp.square(xp.mean(xp.logsumexp(xp.wide(logits), 2), 1)))",
        "z_loss",
        "square_of_the_mean",
    ),
    "wrong gelu": (
        "torch/network.py",
        'approximate="tanh" if form == "tanh" else "none"',
        'approximate="none" if form == "tanh" else "tanh"',
        "network",
        None,
    ),
}


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


@pytest.mark.parametrize("error", ERRORS)
def test_a_small_error_is_found_and_named(run, changed, error):
    file, text, instead, algorithm, variant = ERRORS[error]
    name = changed(f"torch_{re.sub('[^a-z]', '_', error)}", file, text, instead)
    status, printed, _ = run("run", "--target", name, "--dtype", "f64,f32", "--algorithm", algorithm)
    assert status == 1
    assert re.search(rf"^FAIL {algorithm}/\w+ \[float64 eager\] first at \w+/\w+", printed, re.MULTILINE)
    if variant:
        for dtype in ("float64", "float32"):
            (line,) = [line for line in printed.splitlines() if f"{variant}: " in line and f"{dtype} eager" in line]
            assert algorithm in line


def test_the_copy_itself_passes(run, changed):
    name = changed("torch_copy", "once/soft_moe.py", "EPSILON = 1e-6", "EPSILON = 1e-6")
    status, printed, _ = run("run", "--target", name, "--dtype", "f64", "--algorithm", "soft_routing")
    assert status == 0
    assert ", 0 failed, " in printed.splitlines()[-1]


def test_a_copy_leaves_the_original_whole(changed):
    original = importlib.import_module("moespec.backends.torch")
    scores = original.from_numpy(np.array([[[0.6, 0.4], [0.9, 0.1]]]))

    def chosen():
        return original.token_choice(scores, choices=1, capacity=1).token.tolist()

    assert chosen() == [[[0], [2]]]
    importlib.import_module(
        changed("torch_beside", "torch/rows.py", "index.long(), place)", "index.long(), place + 1)")
    )
    assert chosen() == [[[0], [2]]]
