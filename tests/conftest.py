"""What all tests share: the files of `-m fast`, skips that name the extra to install, and JAX without optimisations.

JAX compiles small programs that run once: what XLA would optimise takes more time than it saves.
"""

import os
import re
from collections.abc import Callable, Generator, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

try:
    older = tuple(map(int, version("jax").split(".")[:2])) < (0, 11)
except PackageNotFoundError:
    older = False
# From JAX 0.11 on, XLA does not know the second flag and aborts.
FLAGS = ("--xla_backend_optimization_level=0", *(("--xla_cpu_use_fusion_emitters=false",) if older else ()))
os.environ.setdefault("XLA_FLAGS", " ".join(FLAGS))

FAST = (
    *("test_house.py", "test_readme.py", "test_benchmarks.py", "packaging/test_names.py", "spec"),
    *(
        "backends/numpy",
        "backends/common",
        "backends/test_arrays.py",
        "backends/test_contract.py",
        "backends/test_mesh.py",
    ),
    *("backends/test_edge_gradients.py", "backends/test_optimizers.py", "backends/jax/test_arrays.py"),
    *("backends/torch/test_precision.py", "backends/torch/test_slots.py"),
    *("models/test_mixer.py", "models/test_sparse_mlp.py", "models/test_states.py", "models/test_text.py"),
    *("models/test_vit.py", "training/configuration", "training/data/test_datasets.py", "training/data/test_pairs.py"),
    *("training/data/test_sources.py", "training/data/test_tokens.py", "training/data/test_transforms.py"),
    *("conformance/test_compare.py", "conformance/check/test_waivers.py"),
)
"""The folders and files of the tests that `pytest -m fast` runs: each room, in two minutes on two cores."""

EXTRAS = {
    **{"jax": "jax", "optax": "jax", "torch": "torch", "flax": "flax", "equinox": "equinox", "tensorboard": "data"},
    **dict.fromkeys(("datasets", "pyarrow", "huggingface_hub"), "huggingface"),
    **dict.fromkeys(("onnx", "onnxscript", "flatbuffers"), "export"),
    **dict.fromkeys(("PIL", "matplotlib", "msgpack", "grain", "tomli_w", "filelock", "jinja2"), "train"),
    **dict.fromkeys(("docutils", "sphinx", "myst_parser", "latex2mathml", "nbclient"), "docs"),
    **{"tokenizers": "text"},
}
"""Packages that a test may need, and the extra of moespec that installs each."""
OTHERS = ("triton", "transformers", "timm", "ml_dtypes")
"""Packages that a test may need and no extra installs."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the fast tests, before pytest selects by mark."""
    folders = [Path(__file__).parent / name for name in FAST]
    if missing := [str(folder) for folder in folders if not folder.exists()]:
        raise pytest.UsageError(f"FAST of tests/conftest.py lists {', '.join(missing)}, and there is no such file")
    for item in items:
        if not item.get_closest_marker("full") and any(item.path.is_relative_to(folder) for folder in folders):
            item.add_marker("fast")


def _explained(report: Any, error: BaseException | None, where: str) -> Any:
    """The report of a test or a module that a missing package stopped: skipped, and the reason names the extra."""
    if report.skipped and isinstance(report.longrepr, tuple):
        missing = re.search(r"No module named '(\w+)", report.longrepr[2])
        name = missing[1] if missing else ""
    elif isinstance(error, ModuleNotFoundError):
        name = (error.name or "").partition(".")[0]
    else:
        return report
    if (name in EXTRAS or name in OTHERS) and find_spec(name) is None:
        wanted = f"'moespec[{EXTRAS[name]}]'" if name in EXTRAS else name
        report.outcome, report.longrepr = "skipped", (where, 0, f"Skipped: needs {name}: pip install {wanted}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    report = yield
    return _explained(report, call.excinfo.value if call.excinfo else None, str(item.path))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    report = yield
    raised = report.call.excinfo.value if report.call.excinfo else None
    return _explained(report, raised and raised.__cause__, str(collector.path))


@pytest.fixture(autouse=True)
def installed(request: pytest.FixtureRequest) -> None:
    """Skips a test of a framework that is not installed."""
    callspec = getattr(request.node, "callspec", None)
    if callspec and (backend := callspec.params.get("backend")) in ("jax", "torch"):
        pytest.importorskip(backend)


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command line, which ends with that status: what it printed, or of one that fails what it says."""
    from moespec import cli

    def run(words: Sequence[str], status: int = 0) -> str:
        capsys.readouterr()
        assert cli.main(words) == status
        streams = capsys.readouterr()
        return streams.err if status else streams.out

    return run
