"""`new`: the targets that it writes pass their tests as they are, and fail when they are made wrong."""

import shutil
import subprocess
import sys

import pytest

from moespec.conformance.start import KINDS

WRONG = {
    "torch": ("dim=2", "dim=1"),
    "jax": ("axis=2)", "axis=1)"),
    "numpy": ("exponentials.sum(axis=2", "exponentials.sum(axis=1"),
    "c": ("total += exp(logits[e] - largest)", "total += exp(logits[e])"),
}
NEEDS = {"torch": "torch", "jax": "jax", "numpy": "numpy", "c": "numpy"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_target_passes_and_can_fail(run, kind, tmp_path, monkeypatch):
    pytest.importorskip(NEEDS[kind])
    if kind == "c" and shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    monkeypatch.chdir(tmp_path)
    status, printed, _ = run("new", kind, "fresh_router")
    assert status == 0
    assert printed.splitlines()[-1] == "python -m pytest test_fresh_router.py"
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_fresh_router.py")
    passed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert passed.returncode == 0, passed.stdout + passed.stderr
    assert " passed" in passed.stdout
    source, (right, wrong) = tmp_path / f"fresh_router{KINDS[kind]}", WRONG[kind]
    assert right in source.read_text()
    source.write_text(source.read_text().replace(right, wrong))
    failed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert "first at softmax_affinity/scores" in failed.stdout


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a-b", "name='a-b': expected the name of a module"),
        ("../x", "name='../x': expected the name of a module"),
        ("json", "name='json': there is a module of this name already"),
        ("there", "name='there': test_there.py is there already, and is not overwritten"),
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
