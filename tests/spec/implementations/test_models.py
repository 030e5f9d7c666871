"""The table of published models: its reader, its presets, its page."""

import copy
import json
import math
from importlib.resources import files
from pathlib import Path

import pytest

from moespec.spec import ROUTERS
from moespec.spec.errors import ConfigError
from moespec.spec.implementations.models import find_model, models, parsed, transformers_version
from moespec.spec.implementations.models_page import check_names, page

ROOT = Path(__file__).resolve().parents[3]
TABLE = json.loads(files("moespec.spec.implementations").joinpath("models.json").read_text())
ROUTED = [name for name, model in models().items() if model.router]


def damaged(name, /, **changes):
    """The table with other values in the row `name`. A value of None removes the field."""
    table = copy.deepcopy(TABLE)
    row = next(row for row in table["models"] if row["name"] == name)
    for field, value in changes.items():
        row.pop(field, None) if value is None else row.update({field: value})
    return table


def test_the_table_has_the_models_that_people_search():
    assert len(models()) >= 50
    for name in (
        "deepseek-v3",
        "kimi-k2",
        "kimi-k3",
        "glm-4.5",
        "gpt-oss",
        "qwen3-moe",
        "qwen3-next",
        "mixtral",
        "llama-4",
    ):
        assert name in models()
    checked = [model.checked for model in models().values()]
    assert checked.count("layer") >= 50
    assert all(model.checked or model.not_expressed or not model.block for model in models().values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"router": None}, "deepseek-v3: the field router is missing"),
        ({"routers": ""}, "deepseek-v3: routers is not a field of a model; did you mean router"),
        ({"width": "7168"}, "deepseek-v3: width='7168': expected a value of type int"),
        ({"layer": []}, r"deepseek-v3: layer=\[\]: expected a value of type dict"),
        ({"router": "sigmoid"}, "deepseek-v3: router='sigmoid' is not a router; did you mean sigmoid_token_choice"),
        ({"options": {"choice": 8}}, "deepseek-v3: options: .*choice"),
        ({"options": {"choices": 512}}, "deepseek-v3: options: .*choices"),
        ({"readings": ["GL-9a"]}, "deepseek-v3: readings: 'GL-9a' is not in the ledger"),
        ({"checked": "all"}, "deepseek-v3: checked='all': expected 'layer', 'router' or ''"),
        ({"block": ""}, "deepseek-v3: block='' and source='': expected one of them"),
        ({"config": {"n_group": 1}}, "deepseek-v3: source='': expected where the values of config were read"),
        ({"router": ""}, "deepseek-v3: router='': expected the reason in not_expressed"),
        ({"same_as": "deepseek"}, "deepseek-v3: same_as='deepseek': expected the name of another row"),
        ({"name": "mixtral"}, "name='mixtral' occurs twice"),
    ],
)
def test_a_damaged_table_is_rejected(changes, message):
    with pytest.raises(ConfigError, match=message):
        list(map(check_names, parsed(damaged("deepseek-v3", **changes)).values()))


@pytest.mark.parametrize("table", [[], {}, {"models": {}}, {"models": [3]}])
def test_something_else_than_a_table_is_rejected(table):
    with pytest.raises(ConfigError, match="models"):
        parsed(table)


@pytest.mark.parametrize("name", ROUTED)
def test_every_preset_makes_router_options(name):
    preset = ROUTERS.preset(name)
    options = ROUTERS[preset.router].options(width=32, experts=preset.sizes["experts"], tokens=196, **preset.options)
    assert options.capacity(train=False) >= 196
    assert options.choices == preset.options["choices"]


@pytest.mark.parametrize("name", ROUTED)
def test_every_preset_makes_a_layer(name):
    pytest.importorskip("torch")
    from moespec.backends.torch.nn import MoE

    preset = ROUTERS.preset(name)
    layer = MoE(**preset.sizes, **preset.layer, tokens=196, router=preset.router, **preset.options, device="meta")
    assert layer.experts.fc1.weight.shape[2] == preset.sizes["hidden"]


@pytest.mark.parametrize("name", ["deepseek-v3", "longcat-flash", "llama-4", "qwen3-next"])
def test_a_preset_computes_in_a_small_layer(name):
    torch = pytest.importorskip("torch")
    from moespec.backends.torch.nn import MoE

    preset = ROUTERS.preset(name)
    sizes = {**preset.sizes, "width": 16, "hidden": 8}
    layer = MoE(**sizes, **preset.layer, tokens=9, router=preset.router, **preset.options).eval()
    assert torch.isfinite(layer(torch.randn(2, 9, 16))).all()


def test_names_have_several_spellings():
    assert find_model("DeepSeek V3") is find_model("deepseek_v3") is models()["deepseek-v3"]
    assert ROUTERS.preset("Kimi-K2").sizes["experts"] == 384
    assert ROUTERS.preset("mixtral").options["capacity_factor"] == math.inf


def test_an_unknown_model_gets_near_names():
    with pytest.raises(
        ConfigError, match=r"model='deepseek-v9' is not in the table of models; did you mean .*deepseek-v3"
    ):
        ROUTERS.preset("deepseek-v9")


def test_a_model_without_a_router_says_why():
    with pytest.raises(ConfigError, match=r"model='phi-3.5-moe': no router computes its routing: SparseMixer"):
        ROUTERS.preset("phi-3.5-moe")


def test_the_page_shows_the_table():
    assert (ROOT / "docs" / "models.md").read_text() == page(
        transformers_version(), map(check_names, models().values())
    )
