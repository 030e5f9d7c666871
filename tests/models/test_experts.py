"""Experts and routers of the blocks of a transformer: gated and shared experts, without biases, of a width of their own, block by block."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moespec.models import vit
from moespec.spec.errors import ConfigError
from moespec.training.configuration import configfile
from moespec.training.configuration.config import Config, ModelConfig
from moespec.training.data.datasets import load_configured
from moespec.training.data.options import DataConfig
from moespec.training.evaluation.options import EvaluationConfig
from moespec.training.loop import evaluations, hash_tables
from moespec.training.loop.resolve import model_config
from moespec.training.transfer.rules import transferred
from moespec.training.transfer.start import model_of
from moespec.training.weights.record import Weights, described, of_description

TINY: dict[str, Any] = {"moe": "1,3", "experts": 4, "router": "softmax_token_choice", "router_options": {"choices": 2}}
TOML = """
[model]
moe = "1,3"
experts = 4
router = "softmax_token_choice"
[model.router_options]
choices = 2
[model.block.3]
{}
"""


def test_a_block_keeps_the_options_of_its_router_and_another_router_has_its_own() -> None:
    block = {"1": {"router_options": {"capacity_factor": 3.0}}, "3": {"router": "switch"}}
    first, last = vit.moe_layers(vit.named("vit_tiny", **TINY, block=block), 4)
    assert (first.settings.choices, first.settings.capacity_factor) == (2, 3.0)
    assert last.router == "switch"


def test_tables_of_blocks_are_written_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    own = "experts = 2\nrouter_options.capacity_factor = 2\nshared_experts = 2\nexpert_hidden = 16"
    path.write_text(TOML.format(f'router = "switch"\n{own}'))
    config = configfile.read(path)
    path.write_text(configfile.dump(config))
    model = model_config(configfile.read(path).model)
    assert model == model_config(config.model)
    assert isinstance(model, vit.VitConfig)
    assert of_description(described(model), "file") == model
    assert vit.of_block(model, 3).form[:4] == (16, "gelu", True, 32)


WRONG = {
    "depth = 2": r"model.block.3.depth=2: a block does not have this option",
    "experts = 0": r"model.block.3.experts=0: moe='3' needs at least one expert",
    "router = []": r"model.block.3.router=\[\]: expected one of",
    "router_options = 2": r"model.block.3=\{'router_options': 2\}: expected a table",
    "router_options.shards = 2": r"model.block.3.router_options.shards=2: softmax_token_choice does not have",
    "experts = 1": r"model.block.3.*a token cannot choose 2 of 1 experts",
    "[model.block.2]": r"model.block.2: expected one of the MoE blocks, '1', '3' \(moe='1,3'\)",
}
WRONG = {TOML.format(table): message for table, message in WRONG.items()}
WRONG |= {"[model]\nblock = 3": "expected tables", '[model]\nname = "mixer_tiny"\nblock.3.experts = 2': "mixer_tiny"}


@pytest.mark.parametrize("text", WRONG)
def test_tables_of_blocks_that_cannot_be(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=WRONG[text]):
        model_config(configfile.read(path).model)


def test_hash_layers_have_the_same_tables_and_the_others_none() -> None:
    hashed = {"router": "hash", "experts": 3}
    model = ModelConfig("vit_tiny", **TINY, block={"3": hashed}, image_size=8, channels=1, classes=10)
    dataset = load_configured(DataConfig())
    blocks = hash_tables.initial_params(Config(model=model), dataset)["blocks"]
    assert "tables" not in blocks["1"]["moe"]["router"]
    assert set(np.unique(blocks["3"]["moe"]["router"]["tables"])) == {0, 1, 2}
    with pytest.raises(ConfigError, match="block: expected the same experts, hashes and choices in all hash layers"):
        vit.named("vit_tiny", **TINY, block={"1": {**hashed, "experts": 2}, "3": hashed})
    with pytest.raises(ConfigError, match="MultiHash needs plain experts with biases"):
        vit.named("vit_tiny", **{**TINY, "router": "hash", "router_options": {"hashes": 2}}, expert_bias=False)


def test_another_capacity_at_evaluation_is_that_of_every_block() -> None:
    model = ModelConfig("vit_tiny", **TINY, block={"3": {"router": "switch"}}, image_size=8, channels=1, classes=10)
    config = evaluations._model(Config(model=model), EvaluationConfig(capacity_factor=3.0))
    assert [layer.settings.eval_capacity_factor for layer in vit.moe_layers(config, 2)] == [3.0, 3.0]  # type: ignore[arg-type]


def test_slots_of_a_block_are_kept_in_fine_tuning() -> None:
    config = vit.named("vit_tiny", **TINY, block={"3": {"router": "soft_moe", "experts": 2}})
    section = model_of(Weights(config, vit.init(config), {}))
    larger = model_config(section.but(image_size=16, channels=1, classes=10))
    assert [vit.parameter_shapes(model)["blocks"]["3"]["moe"]["router"]["slots"] for model in (config, larger)] == [
        (64, 2, 8)
    ] * 2  # type: ignore[arg-type]


def test_gated_experts_are_not_made_of_a_plain_mlp_and_a_shared_one_is_new() -> None:
    dense = vit.named("vit_tiny", classes=3)
    source = Weights(dense, vit.init(dense), {})
    fields: dict[str, Any] = {"classes": 3, "moe": "last_1", "experts": 2}
    gated, shared = (
        vit.named("vit_tiny", **fields, **form) for form in ({"expert_activation": "swiglu"}, {"shared_experts": 1})
    )
    with pytest.raises(ConfigError, match=r"init: blocks/3/moe/experts/w3: gated experts need a gated MLP in the"):
        transferred(source, gated, vit.init(gated))
    with pytest.raises(ConfigError, match="--init-skip moe/shared/ initializes it"):
        transferred(source, shared, vit.init(shared))
    assert "blocks/3/moe/shared/w1" in transferred(source, shared, vit.init(shared), skip="moe/shared/").new


CONTRADICTIONS = {
    "shared_gate = true": "shared_gate=True: expected shared_experts=1 or more",
    "latent_norm = true": "latent_norm=True: expected latent_width=1 or more",
    "copy_experts = 2\nzero_experts = 2": "copy_experts=2: at least one of experts=4 must be an MLP",
    "constant_experts = 4": "constant_experts=4: at least one of experts=4 must be an MLP",
    'weights_on = "both"': "weights_on='both': expected",
}


@pytest.mark.parametrize("text", CONTRADICTIONS)
def test_fields_of_experts_that_contradict_each_other(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(TOML.format(text))
    with pytest.raises(ConfigError, match=CONTRADICTIONS[text]):
        model_config(configfile.read(path).model)
