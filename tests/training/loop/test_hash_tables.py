"""The codebook and tables of hash layers: made of a data set, kept in checkpoints, and never trained."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from of_models import params_of, saved

import moespec.backends.numpy as numpy_backend
from moespec.models import vit
from moespec.models.errors import CheckpointError
from moespec.models.hashing import token_ids
from moespec.models.hashing.token_ids import KINDS
from moespec.models.router_options import settings
from moespec.spec.errors import ConfigError
from moespec.training.configuration.config import Config, HashConfig
from moespec.training.loop import checkpoint, hash_tables, resolve
from moespec.training.loop.resolve import model_config


def configured(runs, kind: str = "auto", **model: object) -> Config:  # type: ignore[no-untyped-def]
    """The tiny run with the router hash."""
    fields = {"router": "hash", "codes": 8, **model}
    return replace(runs.config, model=replace(runs.config.model, **fields), hash=HashConfig(kind=kind, images=300))


@pytest.fixture(scope="module")
def hashed(runs, tmp_path_factory) -> Path:  # type: ignore[no-untyped-def]
    run = tmp_path_factory.mktemp("hashed") / "run"
    runs.train(run, "jax", configured(runs))
    return Path(run)


def resolved(runs, kind: str = "auto", **model: object) -> Config:  # type: ignore[no-untyped-def]
    config = configured(runs, kind, **model)
    return resolve.resolve(config, resolve.load_data(config), "numpy")


def made(config: Config) -> hash_tables.HashTables:
    return hash_tables.make(model_config(config.model), config, resolve.load_data(config))


@pytest.mark.parametrize("kind", ["random", "balanced", "clustered", "dispersed"])
def test_tables_of_every_kind(runs, kind: str) -> None:  # type: ignore[no-untyped-def]
    """The same from the same seed, another from another; each id has an expert."""
    config = resolved(runs, kind, pool="token")
    found = made(config)
    assert found.codebook.shape == (8, 16)
    assert found.tables.shape == (1, 9)
    assert set(np.unique(found.tables)) == {0, 1}
    again = made(config)
    np.testing.assert_array_equal(found.codebook, again.codebook)
    np.testing.assert_array_equal(found.tables, again.tables)
    other = made(replace(config, training=replace(config.training, seed=1)))
    assert not np.array_equal(found.codebook, other.codebook)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_of_every_kind_reach_the_model(runs, kind: str) -> None:  # type: ignore[no-untyped-def]
    config = resolved(runs, token_ids=kind)
    found = made(config)
    model = model_config(config.model)
    assert found.tables.shape == (1, vit.router_config(model).ids)
    assert (found.codebook is None) == (kind == "position")
    params = hash_tables.initial_params(config, resolve.load_data(config))
    np.testing.assert_array_equal(params["blocks"]["1"]["moe"]["router"]["tables"], found.tables)


def test_registers_have_ids_of_their_own(runs) -> None:  # type: ignore[no-untyped-def]
    model = model_config(resolved(runs, pool="token", registers=2).model)
    assert vit.router_config(model).ids == 8 + 3
    ids = token_ids.made_of(numpy_backend, model, np.zeros((2, 8, 8, 1)), np.eye(8, 16))
    assert ids[:, :3].tolist() == [[8, 9, 10]] * 2
    assert ids[:, 3:].max() < 8


def test_several_hashes_are_random(runs) -> None:  # type: ignore[no-untyped-def]
    options = {"hashes": 2}
    tables = made(resolved(runs, router_options=options)).tables
    assert tables.shape == (2, 8)
    assert not np.array_equal(*tables)
    with pytest.raises(ConfigError, match=r"hash\.kind='balanced'"):
        made(resolved(runs, "balanced", router_options=options))


def test_constants_stay_through_training_and_go_from_one_backend_to_another(runs, hashed, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """With weight decay and momentum; a run that is resumed by another backend has the same codebook and tables."""
    first = hash_tables.initial_params(resolved(runs), resolve.load_data(runs.config))
    other = runs.stopped(hashed, tmp_path / "torch", step=4)
    runs.train(other, "torch", configured(runs))
    for run in (hashed, other):
        params = params_of(run)
        np.testing.assert_array_equal(params["ids"]["codebook"], first["ids"]["codebook"])
        tables = [p["blocks"]["1"]["moe"]["router"]["tables"] for p in (params, first)]
        np.testing.assert_array_equal(*tables)
        assert not np.array_equal(
            params["blocks"]["1"]["moe"]["experts"]["w1"], first["blocks"]["1"]["moe"]["experts"]["w1"]
        )


@pytest.mark.parametrize("expert", [-1, 99, 0.5, np.nan])
def test_a_table_of_experts_that_there_are_not(runs, hashed, tmp_path: Path, expert: float) -> None:  # type: ignore[no-untyped-def]
    """A checkpoint with the right checksums, whose table is wrong, is rejected."""
    run = runs.stopped(hashed, tmp_path / "run", step=12)
    last = saved(run, 12)
    last.state["params"]["blocks"]["1"]["moe"]["router"]["tables"][0, 3] = expert
    shutil.rmtree(run / "checkpoints")
    checkpoint.write(run / "checkpoints", last, keep=1)
    message = "tables of block 1 must hold integers from 0 to|moe/router/tables contains NaN"
    with pytest.raises(CheckpointError, match=message):
        params_of(run)


def test_a_router_that_needs_ids_is_rejected_where_there_are_none() -> None:
    with pytest.raises(ConfigError, match=r"router='hash' needs ids"):
        settings("hash", {}, width=4, experts=2, tokens=8)
