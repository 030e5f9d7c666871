"""The torch backend copied to a package of its own, with one small error each time: the suite says where and which."""

import importlib
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

SOURCE = Path(__file__).parents[2] / "backends" / "torch"

# File, what stands there, what is put in its place, the algorithm it is seen in, and the known variant it is.
ERRORS = {
    "higher expert": (
        "allocations.py",
        "best = top_indices(scores, tries)",
        "best = experts - 1 - top_indices(scores.flip(2), tries)",
        "token_choice",
        "ties_to_the_higher_expert",
    ),
    "second choices early": (
        "allocations.py",
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
        "allocations.py",
        "priority = scores.gather(2, best.long()).sum(dim=2)",
        "priority = -scores.gather(2, best.long()).sum(dim=2)",
        "batch_priority",
        None,
    ),
    "higher token": (
        "allocations.py",
        "token = top_indices(columns, capacity)",
        "token = tokens - 1 - top_indices(columns.flip(2), capacity)",
        "expert_choice",
        "ties_to_the_higher_token",
    ),
    "softmax axis": (
        "affinities.py",
        "torch.softmax(widen(logits), dim=2)",
        "torch.softmax(widen(logits), dim=1)",
        "softmax_affinity",
        "softmax_over_tokens",
    ),
    "noise": (
        "affinities.py",
        "(multiplier / logits.shape[2]) * noise",
        "multiplier * noise",
        "gating_noise",
        "noise_not_scaled",
    ),
    "rows first": (
        "affinities.py",
        "        columns = column_sum.log() - torch.logsumexp(logits + token_potential, dim=1, keepdim=True)\n"
        "        rows = -torch.logsumexp(logits + columns, dim=2, keepdim=True)\n",
        "        rows = -torch.logsumexp(logits + expert_potential, dim=2, keepdim=True)\n"
        "        columns = column_sum.log() - torch.logsumexp(logits + rows, dim=1, keepdim=True)\n",
        "sinkhorn",
        "rows_first",
    ),
    "unbiased": (
        "losses.py",
        ".square().mean(dim=1) / mean.square()",
        ".square().sum(dim=1) / (values.shape[1] - 1) / mean.square()",
        "importance_loss",
        "unbiased_importance",
    ),
    "z of the mean": (
        "losses.py",
        "torch.logsumexp(widen(logits), dim=2).square().mean()",
        "torch.logsumexp(widen(logits), dim=2).mean(dim=1).square().mean()",
        "z_loss",
        "square_of_the_mean",
    ),
    "root mean square": (
        "soft.py",
        "    squares = (x * x).sum(dim=axis, keepdim=True)\n",
        "    return x.shape[axis] ** 0.5 / (x * x).sum(dim=axis, keepdim=True).sqrt().clamp_min(1e-12)\n    squares = x\n",
        "soft_routing",
        "rms_norm",
    ),
    "soft axes": (
        "soft.py",
        "SoftRouting(dispatched.reshape(shape), combined.reshape(shape))",
        "SoftRouting(combined.reshape(shape), dispatched.reshape(shape))",
        "soft_routing",
        "exchanged",
    ),
    "wrong gelu": (
        "network.py",
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
        package = shutil.copytree(SOURCE, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        for path in package.rglob("*.py"):
            path.write_text(path.read_text().replace("moespec.backends.torch", name))
        path = package / file
        assert path.read_text().count(text) == 1
        path.write_text(path.read_text().replace(text, instead))
        return name

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
    name = changed("torch_copy", "soft.py", "EPSILON = 1e-6", "EPSILON = 1e-6")
    status, printed, _ = run("run", "--target", name, "--dtype", "f64", "--algorithm", "soft_routing")
    assert status == 0
    assert ", 0 failed, " in printed.splitlines()[-1]


def test_a_copy_leaves_the_original_whole(changed):
    original = importlib.import_module("moespec.backends.torch")
    scores = original.from_numpy(np.array([[[0.6, 0.4], [0.9, 0.1]]]))

    def chosen():
        return original.token_choice(scores, choices=1, capacity=1).token.tolist()

    assert chosen() == [[[0], [2]]]
    importlib.import_module(changed("torch_beside", "rows.py", "index.long(), place)", "index.long(), place + 1)"))
    assert chosen() == [[[0], [2]]]
