"""A fused layer in Triton, run by its interpreter, checked by the suite forward and backward: `nox -s cuda`."""

import os
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton", reason="triton is not installed: `nox -s cuda` runs this file")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("only with TRITON_INTERPRET=1, as `nox -s cuda` sets it", allow_module_level=True)

import fused

from moespec.conformance.author.fresh import fresh
from moespec.conformance.check.adapter import Adapter
from moespec.conformance.check.run import run_cases
from moespec.conformance.compare import ALL_DTYPES

ROUTER = "softmax_expert_choice"


@pytest.fixture(scope="module")
def layers() -> Any:
    """The large cases of the router."""
    return fresh(7, lambda id: id.startswith(f"{ROUTER}/"), size="large")


def states(layers: Any, dtype: str) -> dict[str, str]:
    return {r.id.partition("/")[2]: r.state for r in run_cases(Adapter("fused", ALL_DTYPES[dtype]), layers, "eager")}


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_the_kernel_passes(layers: Any, dtype: str) -> None:
    assert states(layers, dtype) == dict.fromkeys(("large_64", "large_128", "large_256", "large_gradient"), "pass")


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_a_wrong_slope_is_caught(layers: Any, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "BEND", 0.0)
    assert states(layers[::3], dtype) == {"large_64": "pass", "large_gradient": "fail"}
