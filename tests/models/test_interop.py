"""Parameters of vmoe and timm convert to ours and back, and both compute the same function.

The vectors in `interop_vectors` are recorded runs of those projects in float64: parameters, images, gating noise,
logits, auxiliary loss, and the gradients of `sum(cotangent * logits) + auxiliary loss`. Each has a JSON beside it that
says which code was run, and how. Here their parameters are converted, our forward runs on each backend, and logits and
gradients, converted back, are compared in their layout.
"""

import contextlib
import copy
import importlib
import importlib.util
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from moespec.models import interop, vit
from moespec.spec.errors import ConfigError, DtypeError, ShapeError

FOLDER = Path(__file__).parent / "interop_vectors"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
TOLERANCE = 1e-9  # of the largest value; both sides compute in float64. The two norm forms of Soft MoE differ by 5e-8
STEP = 1e-30


@dataclass
class Vector:
    """One recorded run."""

    peer: str
    model: dict[str, Any]
    config: vit.VitConfig
    tensors: dict[str, np.ndarray]

    def flat(self, kind: str) -> dict[str, np.ndarray]:
        """The parameters or the gradients, by the other project's names, in float64."""
        return {
            name.removeprefix(f"{kind}/"): value.astype(np.float64)
            for name, value in self.tensors.items()
            if name.startswith(f"{kind}/")
        }

    def to_ours(self, kind: str) -> dict[str, Any]:
        return getattr(interop, f"from_{self.peer}")(self.flat(kind), self.config)

    def to_theirs(self, params: dict[str, Any]) -> dict[str, np.ndarray]:
        return interop._flat(getattr(interop, f"to_{self.peer}")(params, self.config), "/")


def load(name: str) -> Vector:
    record = json.loads((FOLDER / f"{name}.json").read_text())
    model = record["model"]
    if record["peer"] == "vmoe":
        config = interop.config_from_vmoe(model, image_size=record["image_size"], channels=record["channels"])
    else:
        config = interop.config_from_timm(model)
    tensors = load_file(FOLDER / f"{name}.safetensors")
    if record["peer"] == "vmoe":  # safetensors has flat names: "params/head/kernel"
        return Vector("vmoe", model, config, tensors)
    return Vector("timm", model, config, tensors)


def objective(B, vector):
    """The scalar whose gradient was recorded, as a function of our parameters."""
    constants = {name: vector.tensors[name] for name in ("images", "cotangent")}
    constants = B.from_numpy(constants, dtype="float64")
    recorded = [vector.tensors[f"noise/{i}"] for i in range(len(vector.flat("noise")))]
    noise = B.from_numpy(recorded, dtype="float64") or None

    def evaluate(params):
        output = vit.forward(B, vector.config, params, constants["images"], noise=noise)
        auxiliary = sum(output.losses.values(), 0.0)
        return B.sum(constants["cotangent"] * output.logits) + auxiliary, (output.logits, auxiliary, output.metrics)

    return evaluate


@contextlib.contextmanager
def float64(name):
    """The backend `name`, computing in float64."""
    if name != "numpy" and importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    B = importlib.import_module(f"moespec.backends.{name}")
    with importlib.import_module("jax").enable_x64(True) if name == "jax" else contextlib.nullcontext():
        yield B


def check_close(got, expected, scale, what):
    error = np.abs(np.asarray(got) - expected).max() / scale
    assert error <= TOLERANCE, f"{what}: {error:.1e} of the largest value"


def check_gradients(got, expected):
    """Each relative to its largest value, or to 1e-3 of the largest of all: that of a key's bias is 0 but for rounding."""
    floor = 1e-3 * max(np.abs(value).max() for value in expected.values())
    assert set(got) == set(expected)
    for name, value in expected.items():
        check_close(got[name], value, max(np.abs(value).max(), floor), name)


@pytest.mark.parametrize("backend", ["jax", "torch"])
@pytest.mark.parametrize("name", NAMES)
def test_logits_and_gradients_agree(name, backend):
    vector = load(name)
    with float64(backend) as B:
        params = B.from_numpy(vector.to_ours("params"), dtype="float64")
        evaluate = B.value_and_grad(objective(B, vector))
        if backend == "jax":  # otherwise JAX compiles operation by operation, which takes longer
            options = {"xla_backend_optimization_level": 0}
            evaluate = B.compile(evaluate).lower(params).compile(compiler_options=options)
        (_, (logits, auxiliary, _)), gradients = evaluate(params)
        logits, gradients = B.to_numpy(logits), B.to_numpy(gradients)
        auxiliary = float(auxiliary)
    assert logits.dtype == np.float64
    check_close(logits, vector.tensors["logits"], np.abs(vector.tensors["logits"]).max(), "logits")
    recorded = vector.tensors.get("auxiliary_loss", np.zeros(()))
    check_close(auxiliary, recorded, max(recorded, 1e-6), "auxiliary loss")
    check_gradients(vector.to_theirs(gradients), vector.flat("gradients"))


@pytest.mark.parametrize("name", NAMES)
def test_the_specification_agrees(name):
    """On the NumPy backend: logits, and the derivative along a random direction, by one complex step."""
    vector = load(name)
    generator = np.random.default_rng(0)
    expected = vector.flat("gradients")
    direction = {key: generator.standard_normal(value.shape) for key, value in expected.items()}
    moved = {key: value + 1j * STEP * direction[key] for key, value in vector.flat("params").items()}
    params = getattr(interop, f"from_{vector.peer}")(moved, vector.config)
    with float64("numpy") as B:
        loss, (logits, _, metrics) = objective(B, vector)(params)
    check_close(logits.real, vector.tensors["logits"], np.abs(vector.tensors["logits"]).max(), "logits")
    terms = [np.sum(expected[key] * direction[key]) for key in expected]
    check_close(loss.imag / STEP, sum(terms), np.abs(terms).sum(), "directional derivative")
