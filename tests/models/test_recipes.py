"""The recipes of the package: each is read, resolves to a model that trains, and has the paper's number of parameters."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from moespec.models import families
from moespec.models.commandline.chosen import chosen
from moespec.models.data.dataset import Dataset, Split
from moespec.models.training import configfile
from moespec.models.training.config import Config
from moespec.models.training.objective import make_loss
from moespec.models.training.resolve import model_config, resolve

jax = pytest.importorskip("jax")

LARGE = sorted(set(configfile.recipes()) - {"digits", "fashion_mnist"})
"""Those for images of 224 pixels."""


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine for the largest of them, of 27 billion parameters."""
    monkeypatch.setattr("moespec.models.memory.of_machine", lambda: 2**38)


def read(name: str, *options: str) -> Config:
    """The recipe with options of the command line, resolved for made-up data of the shape that it is for."""
    config = chosen(["--config", name, *options], Config())
    config = replace(config, data=replace(config.data, path="images"))
    labels = np.arange(1000)
    split = Split(lambda indices: np.zeros((len(indices), 224, 224, 3), np.uint8), labels)
    data = Dataset("images", split, split, tuple(map(str, labels)), (224, 224, 3), 255)
    return resolve(config, data, "jax")


@pytest.mark.parametrize("name", LARGE)
def test_a_step_of_every_recipe_has_the_shapes_of_its_parameters(name: str) -> None:
    """The gradient of the loss, at the sizes of the recipe but for the batch; nothing is computed."""
    import moespec.backends.jax as B

    config = read(name)
    model = model_config(config.model)
    family = families.family(model)
    shape = jax.tree.map(
        lambda s: jax.ShapeDtypeStruct(s, "float32"),
        family.parameter_shapes(model),
        is_leaf=lambda x: isinstance(x, tuple),
    )
    images = 8
    batch: dict[str, Any] = {
        "images": jax.ShapeDtypeStruct((images, 224, 224, 3), "float32"),
        "targets": jax.ShapeDtypeStruct((images, 1000), "float32"),
        "random": jax.ShapeDtypeStruct((images, 4), "int32"),
    }
    loss = make_loss(B, model, config.training.loss)
    (value, _), gradient = jax.eval_shape(B.value_and_grad(loss), shape, batch)
    assert value.shape == ()
    assert jax.tree.map(lambda x: x.shape, gradient) == jax.tree.map(lambda x: x.shape, shape)


@pytest.mark.parametrize("name", LARGE)
def test_the_batch_of_a_recipe_fills_its_groups(name: str) -> None:
    config = read(name, "--training.steps", "4")  # as who tries it begins: warm-up and cooldown fit
    assert config.schedule.warmup + (config.schedule.cooldown or 0) < config.training.total == 4
    model = model_config(config.model)
    for images in (config.training.batch, config.training.evaluation_batch):
        assert families.family(model).moe_layers(model, images) or model.moe == "none"


def test_parameters_of_the_dense_model() -> None:
    """timm's vit_small_patch16_224 has 22 050 664, with a class token and positions, and without a layer before the head."""
    model = model_config(read("i1k_vit_s16").model)
    assert families.family(model).parameter_count(model) == 22_050_664 - 384 - 197 * 384 + 384 * 385


@pytest.mark.parametrize("name", configfile.recipes())
def test_the_first_line_says_how_to_run_it(name: str) -> None:
    text = configfile.find_recipe(name).read_text()
    assert re.match(rf"# .* \(moespec train( --config {name}( .*)?)?\)\n#\n", text)


@pytest.mark.parametrize("name", [name for name in LARGE if name.startswith("study")])
@pytest.mark.parametrize("router", ["sinkhorn_token_choice", "sparsity_constrained_expert_choice", "soft_moe"])
def test_the_study_takes_its_routers(name: str, router: str) -> None:
    config = configfile.read(configfile.find_recipe(name), router=router)
    assert config.model.router == router
