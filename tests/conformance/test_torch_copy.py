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
        "torch/allocations.py",
        "best = top_indices(scores, tries)",
        "best = experts - 1 - top_indices(scores.flip(2), tries)",
        "token_choice",
        "ties_to_the_higher_expert",
    ),
    "second choices early": (
        "torch/allocations.py",
        "        requests = asked.mT.reshape(groups, -1)\n"
        "        place = request_positions(requests, experts)\n"
        "        if found:\n"
        "            place = place + filled.gather(1, requests.long())\n"
        "        slot = slots_of_places(requests, place, experts, capacity).reshape(groups, -1, tokens).mT\n",
        "        requests = asked.reshape(groups, -1)\n"
        "        place = request_positions(requests, experts)\n"
        "        if found:\n"
        "            place = place + filled.gather(1, requests.long())\n"
        "        slot = slots_of_places(requests, place, experts, capacity).reshape(groups, tokens, -1)\n",
        "token_choice",
        "all_choices_of_a_token_first",
    ),
    "priority upside down": (
        "torch/allocations.py",
        "priority = scores.gather(2, best.long()).sum(dim=2)",
        "priority = -scores.gather(2, best.long()).sum(dim=2)",
        "batch_priority",
        None,
    ),
    "higher token": (
        "torch/allocations.py",
        "token = top_indices(columns, capacity)",
        "token = tokens - 1 - top_indices(columns.flip(2), capacity)",
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
    "noise": (
        "once/affinities.py",
        "(multiplier / logits.shape[2]) * noise",
        "multiplier * noise",
        "gating_noise",
        "noise_not_scaled",
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
    "unbiased": (
        "once/losses.py",
        "xp.mean(xp.square(values - mean), 1, keepdims=True) / xp.square(mean)",
        "xp.sum(xp.square(values - mean), 1, keepdims=True) / (values.shape[1] - 1) / xp.square(mean)",
        "importance_loss",
        "unbiased_importance",
    ),
    "z of the mean": (
        "once/losses.py",
        "xp.mean(xp.square(xp.logsumexp(xp.wide(logits), 2)))",
        "xp.mean(xp.square(xp.mean(xp.logsumexp(xp.wide(logits), 2), 1)))",
        "z_loss",
        "square_of_the_mean",
    ),
    "root mean square": (
        "once/soft_moe.py",
        "    squares = xp.sum(x * x, axis, keepdims=True)\n",
        "    return x.shape[axis] ** 0.5 / xp.maximum(xp.sqrt(xp.sum(x * x, axis, keepdims=True)), 1e-12)\n    squares = x\n",
        "soft_routing",
        "rms_norm",
    ),
    "soft axes": (
        "once/soft_moe.py",
        "    return xp.SoftRouting(\n",
        "    return (lambda dispatched, combined: xp.SoftRouting(combined, dispatched))(\n",
        "soft_routing",
        "exchanged",
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
