"""Runs with each optimiser: stopped, gone on with to the same bits or on another backend; frozen parameters; the average."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from of_models import params_of, saved

from moespec.backends.optimizer import OptimizerConfig
from moespec.backends.optimizer_options import OPTIMIZERS
from moespec.models.pytrees import flatten
from moespec.spec.routers import ROUTERS
from moespec.training.configuration.config import ModelConfig
from moespec.training.configuration.configfile import read
from moespec.training.loop.config_compatibility import changes
from moespec.training.loop.runlog import read_log

FREE = {"adafactor": {"factored_from": 8}}


def arrays(run: Path, step: int) -> dict[str, Any]:
    return flatten({name: tree for name, tree in saved(run, step).state.items() if name != "step"})


SMALL = {"depth": 1, "width": 8, "hidden": 8, "patch_size": 4}
VIT = {**SMALL, "heads": 1, "moe": "last_1", "experts": 4}
MODELS = {
    **{router: ModelConfig(router=router, **VIT) for router in ROUTERS},
    "multi_hash": ModelConfig(router="hash", router_options={"hashes": 2}, **VIT),
    "mixer": ModelConfig(name="mixer_tiny", token_hidden=4, **SMALL),
    "sparse_mlp": ModelConfig(name="sparse_mlp_tiny", moe="last_1", **SMALL),
}


OWN = (
    "noisy_top_k",
    "sigmoid_token_choice",
    "relu",
    "batch_expert_choice",
    "hash",
    "multi_hash",
    "mixer",
    "sparse_mlp",
)
"""Models that have noise, a state or constants, and the other families; the rest have parameters alone."""
RESUMED = [pytest.param("adamw", name, marks=() if name in OWN else pytest.mark.full) for name in MODELS]


@pytest.mark.parametrize(("name", "model"), [*((name, "") for name in OPTIMIZERS), *RESUMED])
def test_a_stopped_run_goes_on(runs: Any, name: str, model: str, tmp_path: Path) -> None:
    """To the same bits with each optimiser and each model; with one on JAX, too, to the same numbers but for rounding."""
    around: Any = {"weight_decay": 0.1, "clip": 1.0, "ema": 0.5, "rates": "embedding=0, head/=2", **FREE.get(name, {})}
    training = replace(runs.config.training, steps=4, checkpoint_every=2, evaluate_every=2)
    config = replace(runs.config, model=MODELS.get(model, runs.config.model), training=training)
    config = replace(config, optimizer=OptimizerConfig(name, **around))  # type: ignore[arg-type]
    whole, again, other = (tmp_path / part for part in ("whole", "again", "other"))
    runs.train(whole, "torch", config)
    both = name == "adafactor" and not model  # another backend; tests/backends/test_optimizers.py has each optimiser
    for run, backend in ((again, "torch"), *(((other, "jax"),) if both else ())):
        runs.stopped(whole, run, step=2)
        runs.train(run, backend, config)
    expected, resumed = arrays(whole, 4), arrays(again, 4)
    assert {path.split("/")[0] for path in expected} == {"params", *config.optimizer.slots(("w",), (16, 16))} | (
        {"nu"} if name == "adafactor" else set()
    )
    for path, value in expected.items():
        assert resumed[path].tobytes() == value.tobytes(), path
    for path, value in expected.items() if both else ():
        scale = max(np.abs(value).max(), 1e-6)
        # Where a gradient is 0 but for rounding, Adam's first steps are not.
        wrong = np.abs(arrays(other, 4)[path] - value) > 1e-3 * scale
        assert wrong.mean() < 0.02 or path.split("/", 1)[1].endswith("key/bias"), path
    assert not any(path.split("/")[1] == "embedding" for path in expected if not path.startswith("params/"))


def test_the_average_is_evaluated_and_kept(runs: Any, tmp_path: Path, said: Any) -> None:
    run = tmp_path / "run"
    flags = ["--optimizer.ema", "0.5", "--optimizer.rates", "positions=0", "--model.positions", "learned"]
    shown = said(["train", "--backend", "torch", "--run", str(run), *runs.flags, *flags])
    last = read_log(run, "evaluation")[-1]
    assert last["average"].keys() == {"accuracy", "loss"}
    assert last["average"]["loss"] != last["loss"]
    assert f"validation accuracy of the moving average {last['average']['accuracy']:.4f}" in shown
    expected = f"moving average: validation accuracy {last['average']['accuracy']:.4f}, cross-entropy "
    assert f"{expected}{last['average']['loss']:.4f}" in said(["evaluate", str(run)])
    params, average = params_of(run), params_of(run, average=True)
    assert average["positions"].tobytes() == params["positions"].tobytes()
    assert average["head"]["kernel"].tobytes() == arrays(run, 12)["ema/head/kernel"].tobytes()
    assert np.any(average["head"]["kernel"] != params["head"]["kernel"])


@pytest.mark.parametrize(
    "flags", [["--optimizer.name", "sgd"], ["--optimizer.rates", "positions=0"], ["--optimizer.ema", "0.5"]]
)
def test_an_optimiser_that_keeps_something_else_cannot_be_overridden(
    runs: Any, flags: list[str], tmp_path: Path, said: Any
) -> None:
    resume = ["train", "--run", str(runs.broken("torch", tmp_path / "run", step=4)), "--resume", "--override"]
    said([*resume, *flags, "--model.positions", "learned"], 2)
    given = [flag.replace("positions", "head/bias") for flag in flags]
    assert "since the checkpoint lacks this optimizer's state" in said([*resume, *given], 2)
    said([*resume, "--optimizer.rates", "head/bias=2"])


# Weight decay in the configuration: rates by pattern, and the rule that older runs keep.


PATHS = [path.split("/") for path in ("head/kernel", "blocks/3/moe/experts/w1", "moe/router/slots", "moe/router/scale")]


def rates(optimizer: OptimizerConfig) -> list[float]:
    return [optimizer.decay_of(path) for path in PATHS]


def written(folder: Path, table: dict[str, object]) -> Path:
    path = folder / "config.toml"
    path.write_text(tomli_w.dumps(table))
    return path


def test_a_run_that_is_older_keeps_its_rule(tmp_path: Path) -> None:
    """Its file says a format, or has the options of every router; slots decayed then, and the scale did not.

    So a checkpoint that was recorded before there was the field is of no other configuration.
    """
    older = {"format": 2, "optimizer": {"weight_decay": 0.25}}
    every = {"sinkhorn_iterations": 20, "norm_form": "paper", "selector_gamma": 1.0}
    first = {"model": {"router": "soft_moe", "router_options": every}, "optimizer": {"weight_decay": 0.25}}
    for table in (older, first):
        assert rates(read(written(tmp_path, table)).optimizer) == [0.25, 0.25, 0.25, 0.0]
    recipe = {"optimizer": {"weight_decay": 0.25}}
    assert rates(read(written(tmp_path, recipe)).optimizer) == [0.25, 0.25, 0.0, 0.25]
    config = read(written(tmp_path, older))
    record = asdict(config)
    del record["optimizer"]["decay"]
    assert changes(record, config) == {}
    now = replace(config, optimizer=replace(config.optimizer, decay=""))
    assert list(changes(record, now)) == ["optimizer.decay"]
