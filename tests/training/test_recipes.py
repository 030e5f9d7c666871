"""The recipes of the package: each is read, resolves to a model that trains, and has the paper's number of parameters."""

import re
import tomllib
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moespec.models import families
from moespec.models.pytrees import flatten, nested
from moespec.spec.routers import ROUTERS
from moespec.training.commandline.chosen import chosen
from moespec.training.commandline.parse import parse
from moespec.training.commands.study import entries
from moespec.training.commands.train import TrainArguments
from moespec.training.configuration import configfile
from moespec.training.configuration.config import Config
from moespec.training.data.captions import captions_of
from moespec.training.data.dataset import Dataset, Split
from moespec.training.loop.resolve import model_config, resolve
from moespec.training.objectives.table import objective_of, shapes_of

jax = pytest.importorskip("jax")

LARGE = sorted(set(configfile.recipes()) - {"digits", "fashion_mnist"})
"""Those for pictures."""
SOURCES = tomllib.loads((Path(__file__).parent / "recipe_sources.toml").read_text())["source"]
SMALLEST = "soft_moe_s16|jft_ec_s16|i1k_vit_s16|laion_soft_moe_s16|vmoe_s32_ft_i1k|sparse_mlp_(s_moco|ft_i1k)|study_b32"
"""The smallest recipes that together have every objective and kind of model."""
FOLLOWING = [name for name in LARGE if not name.startswith("sparse_mlp")]
"""Those whose source is public code, of which `recipe_sources.toml` has every line."""


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine for the largest of them, of 27 billion parameters."""
    monkeypatch.setattr("moespec.models.memory.of_machine", lambda: 2**38)


def read(name: str, *options: str) -> Config:
    """The recipe with options of the command line, resolved for made-up data of the shape that it is for."""
    words = ["--config", name, *options]
    config = parse("train", TrainArguments, words, settings=chosen(words, Config())).settings
    config = replace(config, data=replace(config.data, path="images"))
    labels, shape = np.arange(20_000) % 1000, (config.model.image_size or 224,) * 2 + (3,)
    captions, classes = None, tuple(map(str, range(1000)))
    if config.objective == "lit":
        captions, classes = captions_of(["a"] * len(labels)), ()
    split = Split(lambda indices: np.zeros((len(indices), *shape), np.uint8), labels, captions=captions)
    return resolve(config, Dataset("images", split, split, classes, shape, 255), "jax")


@pytest.mark.parametrize("name", FOLLOWING)
def test_a_recipe_has_what_its_source_has(name: str) -> None:
    """Every field of the file, and no other: each has a place in the source, or the reason why it differs."""
    expected: dict[str, Any] = {}
    for source in SOURCES:
        if any(fnmatch(name, pattern) for pattern in source["recipes"]):
            assert not source["facts"].keys() & expected.keys()
            expected |= {field: fact["is"] for field, fact in source["facts"].items()}
    assert configfile.flat(tomllib.loads(configfile.find_recipe(name).read_text())) == expected


@pytest.mark.parametrize("name", configfile.recipes())
def test_a_recipe_is_complete(name: str) -> None:
    sections = tomllib.loads(configfile.find_recipe(name).read_text())
    assert sections.keys() >= {"data", "optimizer", "schedule", "training"}


@pytest.mark.parametrize("name", [name for name in LARGE if re.fullmatch(SMALLEST, name)])
def test_a_step_has_the_shapes_of_the_parameters(name: str) -> None:
    """The gradient of the loss at the recipe's sizes but for the batch; nothing is computed."""
    import moespec.backends.jax as B

    config = read(name)
    model, pixels = model_config(config.model), config.model.image_size
    objective = objective_of(config)
    shapes = flatten(shapes_of(config, model))
    shape = nested({path: jax.ShapeDtypeStruct(of, "float32") for path, of in shapes.items()})
    images = 8
    batch: dict[str, Any] = {
        "images": jax.ShapeDtypeStruct((images, pixels, pixels, 3), "float32"),
        "targets": jax.ShapeDtypeStruct((images, 1000), "float32"),
        "random": jax.ShapeDtypeStruct((images, 4), "int32"),
    }
    if config.objective == "moco":
        batch = {"first": batch, "second": batch}
    elif config.objective == "lit":
        batch = {"image": batch, "text": {"ids": jax.ShapeDtypeStruct((images, config.text.length), "int32")}}
    average = (shape,) if objective.averaged else ()
    loss = objective.make_loss(B, config, model)
    (value, _), gradient = jax.eval_shape(B.value_and_grad(loss), shape, batch, *average)
    assert value.shape == ()
    assert jax.tree.map(lambda x: x.shape, gradient) == jax.tree.map(lambda x: x.shape, shape)


@pytest.mark.parametrize("name", LARGE)
def test_the_batch_of_a_recipe_fills_its_groups(name: str) -> None:
    config = read(name, "--training.steps", "4")  # as who tries it begins: warm-up and cooldown fit
    assert config.schedule.warmup + (config.schedule.cooldown or 0) < config.training.total == 4
    model = model_config(config.model)
    for images in (config.training.batch, config.training.evaluation_batch):
        assert families.family(model).moe_layers(model, images) or model.moe == "none"


SIX = "(softmax|sinkhorn)_(token|expert)_choice|sparsity.*expert.*|soft_moe"
STUDIED = [name for name in ROUTERS if re.fullmatch(SIX, name)]


@pytest.mark.parametrize("name", ["study_b16", "study_l16"])
def test_each_router_of_the_study_groups_images_as_it_needs(name: str) -> None:
    """Eight images where tokens are assigned, one in Soft MoE, so that all six have about one slot for each token."""
    path, found = configfile.find_recipe(name), {}
    for router, entry in entries(STUDIED, configfile.read(path)).items():
        assert model_config(entry.model) == model_config(configfile.read(path, router=router).model)
        model = model_config(read(name, "--router", router).model)
        settings = families.family(model).moe_layers(model, 8)[0].settings
        found[router] = settings.tokens, 32 * settings.capacity()
    assert found == {router: (196, 192) if router == "soft_moe" else (1568, 1568) for router in STUDIED}
    assert len(found) == 6
