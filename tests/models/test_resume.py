"""A run of each router and each model that is stopped and goes on from its checkpoint has the bits of an unbroken one."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moespec.models.families import family
from moespec.models.training import checkpoint, evaluations
from moespec.models.training import train as training
from moespec.models.training.config import Config, ModelConfig, ScheduleConfig, TrainingConfig
from moespec.models.training.resolve import load_backend, load_data, model_config, resolve
from moespec.models.training.rundirectory import RunDirectory
from moespec.models.trees import flatten
from moespec.spec.routers import ROUTERS

STEPS, STOPPED = 4, 2
SMALL = {"depth": 1, "width": 8, "hidden": 8, "patch_size": 4}
VIT = {**SMALL, "heads": 1, "moe": "last_1", "experts": 4}
MODELS = {
    **{router: ModelConfig(router=router, **VIT) for router in ROUTERS},
    "multi_hash": ModelConfig(router="hash", router_options={"hashes": 2}, **VIT),
    "class_token": ModelConfig(pool="token", qk_norm=True, **VIT),
    "attention_pooling": ModelConfig(pool="map", positions="sincos2d", **VIT),
    "mixer": ModelConfig(name="mixer_tiny", token_hidden=4, **SMALL),
    "sparse_mlp": ModelConfig(name="sparse_mlp_tiny", moe="last_1", **SMALL),
}


OF_JAX = ("noisy_top_k", "soft_moe", "multi_hash", "sparse_mlp")
"""Models that JAX, which compiles for longer, trains in every run of the tests; torch trains all."""
CASES = [
    pytest.param(name, backend, marks=() if backend == "torch" or name in OF_JAX else pytest.mark.full)
    for name in MODELS
    for backend in ("jax", "torch")
]


@pytest.mark.parametrize(("name", "backend"), CASES)
def test_the_bits_of_an_unbroken_run(name: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(backend)
    B = load_backend(backend)
    # Both sittings run the same compiled step. Evaluation, which changes nothing, would have to be compiled as well.
    monkeypatch.setattr(B, "make_step", cache_of_one(B.make_step))
    monkeypatch.setattr(evaluations, "evaluate", lambda *arguments, **options: {"accuracy": 0.0, "loss": 0.0})
    schedule = ScheduleConfig(warmup=0, peak=1e-2)
    settings = TrainingConfig(steps=STEPS, batch=4, checkpoint_every=STOPPED, log_every=1)
    config = Config(model=MODELS[name], schedule=schedule, training=settings)
    dataset = load_data(config)
    config = resolve(config, dataset, backend)
    run = tmp_path / "run"
    RunDirectory(run).claim(config, resume=False)
    training.train(B, config, dataset, run)
    last = run / "checkpoints" / f"{STEPS:08d}"
    shapes = family(model_config(config.model)).parameter_shapes(model_config(config.model))
    unbroken = checkpoint.read(last, shapes).state
    shutil.rmtree(last)
    training.train(B, config, dataset, run)
    resumed = checkpoint.read(last, shapes).state
    start = checkpoint.read(run / "checkpoints" / f"{STOPPED:08d}", shapes).state
    for tree in ("params", "mu", "nu"):
        expected, found = flatten(unbroken[tree]), flatten(resumed[tree])
        assert any((value != flatten(start[tree])[path]).any() for path, value in found.items()), "nothing was trained"
        for path, value in expected.items():
            assert found[path].tobytes() == value.tobytes(), f"{tree} {path}"


def cache_of_one(make_step: Callable[..., Any]) -> Callable[..., Any]:
    """`make_step`, but the step that it made first ever after."""
    made: list[Any] = []

    def make(*arguments: Any, **options: Any) -> Any:
        if not made:
            made.append(make_step(*arguments, **options))
        return made[0]

    return make


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_how_an_array_lies_in_memory_does_not_matter(backend: str) -> None:
    """A state of arrays in column-major order computes as the same state from a file, which are in row-major order."""
    if backend != "numpy":
        pytest.importorskip(backend)
    B, optimizer = load_backend(backend), Config().optimizer
    random = np.random.default_rng(0)
    columns = {"kernel": np.asfortranarray(random.standard_normal((640, 480), np.float32))}
    rows = {"kernel": np.ascontiguousarray(columns["kernel"])}
    exported = {"params": columns, "mu": columns, "nu": columns, "step": 3}
    for state in (B.init_state(columns, optimizer), B.import_state(exported, optimizer)):
        again = B.export_state(B.import_state(B.export_state(state), optimizer))
        assert again["params"]["kernel"].tobytes() == B.export_state(state)["params"]["kernel"].tobytes()
        first, second = (
            np.hstack([B.to_numpy(B.sum(B.state_params(one)["kernel"] ** 2, axis)) for axis in (0, 1, None)])
            for one in (state, B.init_state(rows, optimizer))
        )
        assert first.tobytes() == second.tobytes()
