"""JAX compiles small programs that run once: what XLA would optimise takes more time than it saves."""

import os
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version

import pytest

try:
    older = tuple(map(int, version("jax").split(".")[:2])) < (0, 11)
except PackageNotFoundError:
    older = False
# From JAX 0.11 on, XLA does not know the second flag and aborts.
FLAGS = ("--xla_backend_optimization_level=0", *(("--xla_cpu_use_fusion_emitters=false",) if older else ()))
os.environ.setdefault("XLA_FLAGS", " ".join(FLAGS))


@pytest.fixture(autouse=True)
def installed(request: pytest.FixtureRequest) -> None:
    """Skips a test of a framework that is not installed."""
    callspec = getattr(request.node, "callspec", None)
    if callspec and (backend := callspec.params.get("backend")) in ("jax", "torch"):
        pytest.importorskip(backend)


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command line, which ends with that status: what it printed, or of one that fails what it says."""
    from moespec.training import cli

    def run(words: Sequence[str], status: int = 0) -> str:
        capsys.readouterr()
        assert cli.main(words) == status
        streams = capsys.readouterr()
        return streams.err if status else streams.out

    return run
