"""`moespec plan`: what it says against the state that JAX makes, against hand counts, and against the TPU's compiler."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moespec.backends.jax.mesh import OnMesh
from moespec.backends.jax.optimizers import by_leaf
from moespec.backends.mesh import MeshSizes
from moespec.backends.optimizer import OptimizerConfig
from moespec.backends.pytrees import leaves
from moespec.models import counts, families
from moespec.models.options import help_texts
from moespec.models.parameters import shaped
from moespec.spec.errors import ConfigError
from moespec.training.commands.plan import PlanArguments, options
from moespec.training.configuration import configfile
from moespec.training.configuration.config import Config, LitConfig, MeshConfig, TrainingConfig
from moespec.training.configuration.modelconfig import ModelConfig
from moespec.training.data.options import DataConfig
from moespec.training.loop.resolve import model_config
from moespec.training.objectives.lit import tower_of
from moespec.training.planning.chips import CHIPS
from moespec.training.planning.footprint import owned
from moespec.training.planning.plan import best, plan, plans, settled

RESULT = Path(__file__).parents[3] / "benchmarks" / "results" / "plan.json"
SMALL = ModelConfig(
    **{"name": "vit_tiny", "width": 128, "hidden": 256, "heads": 2, "depth": 2, "moe": "last_1", "experts": 4},
    **{"router": "softmax_token_choice", "image_size": 32, "patch_size": 8, "channels": 3, "classes": 10},
)


def config(mesh: MeshConfig = MeshConfig(), model: ModelConfig = SMALL, **training: Any) -> Config:  # noqa: B008
    """64 images a step, with AdamW."""
    settings = TrainingConfig(**{"batch": 64, **training})
    return Config(model=model, training=settings, optimizer=OptimizerConfig(), mesh=mesh)


OPTIMIZERS: list[dict[str, Any]] = [
    {"name": "adamw"},
    {"name": "adamw", "momentum_dtype": "bfloat16", "ema": 0.999, "rates": "embedding/=0"},
    {"name": "adafactor"},
    {"name": "sgd"},
]


@pytest.mark.parametrize("options", OPTIMIZERS)
def test_memory_of_parameters_and_slots_is_that_of_the_state(options: dict[str, Any]) -> None:
    """On one device; how they are split is counted by hand below, and by the compiler."""
    model, optimizer = model_config(SMALL), OptimizerConfig(**options)
    shapes = families.family(model).parameter_shapes(model)
    state, of = OnMesh(MeshSizes()).state_shapes(shaped(shapes), optimizer), dict(leaves(shapes))
    slots = [leaf.size * leaf.dtype.itemsize for leaf in state.average.values()]

    def count(slot: str, path: Any, leaf: Any) -> None:
        # Without the number of the step, and what optax has in the place of a slot that a parameter does not have.
        if path is not None and slot in optimizer.slots(path, of[path]):
            slots.append(leaf.size * leaf.dtype.itemsize)

    by_leaf(state.optimizer, count)
    mine = owned(shapes, optimizer, MeshSizes())
    assert (mine.parameters, mine.optimizer) == (4 * families.family(model).parameter_count(model), sum(slots))


def test_what_is_not_trained_has_no_gradient_and_no_slot() -> None:
    shapes = {"head": {"kernel": (128, 128)}, "norm": {"scale": (128,)}}
    whole = owned(shapes, OptimizerConfig(), MeshSizes())
    assert whole == (4 * (128**2 + 128), 4 * (128**2 + 128), 8 * (128**2 + 128), 4 * (128**2 + 128))
    frozen = owned(shapes, OptimizerConfig(rates="head/=0"), MeshSizes(fsdp=4))
    assert frozen == (4 * (128**2 // 4 + 128), 4 * 128, 8 * 128, 4 * (128**2 + 128))
    factored = owned({"head": {"kernel": (128, 512)}}, OptimizerConfig("adafactor"), MeshSizes(fsdp=4))
    # Rows are whole, columns are split as the parameter is.
    assert factored.optimizer == 2 * 128 * 512 // 4 + 4 * (128 + 512 // 4)


COMPILED = json.loads(RESULT.read_text())["figures"]["cases"] if RESULT.is_file() else {}


@pytest.mark.parametrize("name", COMPILED)
def test_memory_against_the_compiler_s(name: str) -> None:
    """benchmarks/plan_check.py compiled the steps; the plan is near to what they need, and mostly above."""
    case, compiler = COMPILED[name]["case"], COMPILED[name]["compiler"]
    sizes = MeshSizes(**case["mesh"])
    made = plan(
        Config(
            model=ModelConfig(**case["model"]),
            optimizer=OptimizerConfig(**{"clip": 1.0, "weight_decay": 0.1, **case.get("optimizer", {})}),
            training=TrainingConfig(batch=case["images"] * sizes.devices, **case.get("training", {})),
        ),
        sizes,
        CHIPS[case["topology"].partition(":")[0]],
    )
    arguments = sum(made.memory[part] for part in ("parameters", "optimizer", "batch"))
    # A TPU fills tiles of 8 x 128 numbers up: of parts such as 3 x 192 along fsdp to more than three times as many.
    assert (0.9 if sizes.fsdp > 1 else 0.99) < arguments / compiler["arguments"] < 1.01
    assert 0.98 < made.bytes / (compiler["arguments"] + compiler["temporary"]) < 1.35
    # An all-to-all returns the part that stays, too.
    received = compiler["collectives"].get("all-to-all", 0) * (1 - 1 / sizes.expert)
    assert made.links["slots"] == pytest.approx(received, rel=1e-6)
    if sizes.fsdp > 1 and "optimizer" not in case:  # Adafactor gathers besides
        gathered = compiler["collectives"]["all-gather"] * (1 - 1 / sizes.fsdp)
        assert made.links["gathers"] == pytest.approx(gathered, rel=0.01)


def test_every_number_of_a_small_case() -> None:
    """vit_tiny of width 128, hidden 256, 2 heads, 16 patches of 8 x 8 x 3 pixels, 2 blocks, 4 experts in the second; 8 devices."""
    made = plan(config(batch=64), MeshSizes(data=2, fsdp=2, expert=2), CHIPS["v5e"])
    D, H, E, images = 128, 256, 4, 8
    attention = 4 * D * D  # kernels; of their 4 D biases and 4 D of norms none is split
    mlp, mlp_bias = 2 * D * H, H + D
    kernel, head = 8 * 8 * 3 * D, D * 10
    # Split in two over fsdp: matrices of 2^14 entries and more. Over expert: experts, whose biases stay whole along fsdp.
    in_two, over_both, over_experts = attention * 2 + mlp + kernel, E * mlp, E * mlp_bias
    block = 4 * D + 4 * D + 2 * 64  # of that, queries and keys are normalised with 64 factors each
    whole = 2 * block + mlp_bias + D + head + 10 + 2 * D + D * E
    parameters = in_two // 2 + over_both // 4 + over_experts // 2 + whole
    assert made.memory["parameters"] == made.memory["gradients"] == 4 * parameters
    assert made.memory["optimizer"] == 8 * parameters
    assert made.memory["batch"] == 4 * images * (3 * 32 * 128 + 10)  # rows of 32 pixels take 128
    slots = 4 * 4  # 16 tokens, 1 choice, factor 1
    # The links: of two, each has half of what the other needs.
    assert made.links["slots"] == 4 * images * slots * D * 4 / 2
    assert made.links["gathers"] == 4 * (in_two // 2 + over_both // 4)
    scattered = 4 * (in_two // 2 + over_both // 4)
    # 2 (n - 1)/n of what n devices have in common.
    reduced = 4 * (2 * (3 / 4) * (in_two // 2) + 2 * (1 / 2) * (over_both // 4))
    reduced += 4 * (2 * (3 / 4) * (over_experts // 2) + 2 * (7 / 8) * whole)
    assert made.links["reductions"] == scattered + reduced
    forward = sum(counts.flops(model_config(SMALL), 8).values())
    assert made.flops == 3 * images * forward
    computed = in_two + over_both // 2 + over_experts // 2 + whole
    assert made.traffic == 4 * (2 * computed + 2 * parameters + 2 * parameters + 2 * 2 * parameters)
    chip = CHIPS["v5e"]
    links = sum(made.links.values()) / chip.link
    assert made.seconds == {"compute": made.flops / 197e12, "memory": made.traffic / 819e9, "links": links}
    assert made.longest == max(made.seconds.values())


def test_recomputed_and_in_parts() -> None:
    plain, sizes = plan(config(batch=64), MeshSizes(2, 2, 2), CHIPS["v5e"]), MeshSizes(2, 2, 2)
    again = plan(config(batch=64, recompute=True), sizes, CHIPS["v5e"])
    parts = plan(config(batch=64, accumulate=2), sizes, CHIPS["v5e"])
    assert again.flops == plain.flops / 3 * 4
    assert again.links["slots"] == 1.5 * plain.links["slots"]
    assert plain.links["gathers"] < again.links["gathers"] < 2 * plain.links["gathers"], "the embedding: once"
    assert parts.memory["gradients"] == 2 * plain.memory["gradients"]
    assert parts.links["slots"] == plain.links["slots"]
    assert parts.links["gathers"] == 2 * plain.links["gathers"]
    assert plain.links["reductions"] < parts.links["reductions"] < 2 * plain.links["reductions"]  # along fsdp, twice
    assert parts.flops == plain.flops


def test_a_step_of_two_towers() -> None:
    """Both are trained; or the image tower is locked, and goes forward, or not even that, as its features are kept."""
    words = {"width": 64, "hidden": 96, "depth": 2, "moe": "last_1", "experts": 4, "router": "softmax_token_choice"}
    towers = replace(config(), objective="lit", text=ModelConfig("text_tiny", **words), lit=LitConfig(locked=False))
    locked = replace(towers, lit=LitConfig(), init="somewhere")
    both, forward, kept = (
        plan(each, MeshSizes(2, 1, 4), CHIPS["v5e"])
        for each in (towers, replace(locked, data=DataConfig(flip=True)), locked)
    )
    image, text = model_config(SMALL), tower_of(settled(towers))
    flops = [sum(counts.flops(one).values()) for one in (image, text)]
    slots = [16 * 128 * 4 * 3 / 4, 32 * 64 * 4 * 3 / 4]  # as many as tokens, of the width, three of four go elsewhere
    loss = 64 * 2 * 128 * 64  # the similarities of 64 images and texts, of width 128
    for made, passes in ((both, (3, 3)), (forward, (1, 3)), (kept, (0, 3))):
        assert made.flops == pytest.approx(8 * sum(n * of for n, of in zip(passes, flops, strict=True)) + 3 * loss)
        ways = [{3: 4, 1: 2, 0: 0}[n] for n in passes]
        assert made.links["slots"] == 8 * sum(n * of for n, of in zip(ways, slots, strict=True))
    assert both.memory["gradients"] == both.memory["parameters"] > forward.memory["gradients"]


MODERATE = ModelConfig("vit_b16", router="soft_moe", experts=32, moe="last_half", dtype="bfloat16")


def test_the_chosen_mesh_fits_and_none_that_fits_has_a_lesser_bound() -> None:
    found = plans(config(model=MODERATE, batch=512), 16, CHIPS["v5e"])
    chosen = best(found)
    assert chosen.fits
    assert {each.fits for each in found} == {True, False}
    assert chosen.bytes <= CHIPS["v5e"].memory < max(each.bytes for each in found)
    assert all(chosen.longest <= 1.001 * each.longest for each in found if each.fits)


def test_messages_take_more_links_the_more_devices_share_the_experts() -> None:
    """On a torus all 8 others of a ring of 2 x 2 x 2 are 1, 1, 1, 2, 2, 2 and 3 links away."""
    assert CHIPS["v5p"].hops(8) <= 12 / 7
    assert CHIPS["v5e"].hops(4) == pytest.approx(4 / 3)
    assert CHIPS["h100"].hops(64) == 1
    four = plan(config(), MeshSizes(2, 1, 4), CHIPS["v5e"])
    expected = four.links["slots"] * 4 / 3 + four.links["reductions"]
    assert four.seconds["links"] == pytest.approx(expected / CHIPS["v5e"].link)


def test_a_dense_model_has_no_axis_of_experts() -> None:
    found = plans(config(model=replace(SMALL, moe="none")), 8, CHIPS["v5e"])
    assert {each.sizes.shape for each in found} == {(8, 1, 1), (4, 2, 1), (2, 4, 1), (1, 8, 1)}


def test_a_group_of_the_whole_batch_does_not_span_devices() -> None:
    model = ModelConfig("sparse_mlp_tiny")
    with pytest.raises(ConfigError, match="would span several devices"):
        plans(config(model=model), 4, CHIPS["v5e"])
    grouped = replace(model, group_size=32, group_images=1)
    assert best(plans(config(model=grouped), 4, CHIPS["v5e"]))


RUN = ["plan", "--model", "vit_b16", "--router", "soft_moe", "--experts", "32", "--training.batch", "512"]
RUN += ["--devices", "16", "--chip", "v5e", "--model.dtype", "bfloat16"]


def test_the_command_prints_options_that_train_takes(said: Any) -> None:
    report = json.loads(said([*RUN, "--json"]))
    lines = said(RUN).splitlines()
    options = lines[-1].strip()
    assert options == report["best"]["options"]
    assert report["best"] == next(each for each in report["plans"] if each["fits"])
    assert math.prod(report["best"]["mesh"].values()) == 16
    # With these options there is one mesh, the same.
    (again,) = json.loads(said([*RUN, "--json", *options.split()]))["plans"]
    assert again["mesh"] == report["best"]["mesh"]
    assert again["bytes"] == report["best"]["bytes"] == pytest.approx(sum(again["memory"].values()))


def test_the_command_says_what_the_whole_run_takes(said: Any) -> None:
    of_run = [*RUN, "--training.steps", "1000", "--utilisation", "0.5"]
    run = json.loads(said([*of_run, "--json"]))["run"]
    forward = sum(counts.flops(model_config(MODERATE), train=True).values())
    assert run["images"] == 512_000
    assert run["flops"] == pytest.approx(3 * 512_000 * forward)
    assert run["device_days"] == pytest.approx(run["flops"] / 197e12 / 0.5 / 86_400)
    assert f"; {run['device_days']:.4g} device-days at 50% of the peak\n" in said(of_run)


@pytest.mark.parametrize("name", CHIPS)
def test_the_help_and_the_docs_have_the_figures_of_each_chip(name: str) -> None:
    chip, page = CHIPS[name], (RESULT.parents[2] / "docs" / "devices.md").read_text()
    (row,) = [line.split(" | ") for line in page.splitlines() if line.startswith(f"| `{name}`")]
    memory = f"{chip.memory / 2**30:g} GiB" if chip.torus else f"{chip.memory / 1e9:g} GB"
    rates = (chip.flops / 1e3, chip.peak("float32") / 1e3, chip.bandwidth, chip.link)
    figures = [f"{each / 1e9:.6g}" for each in rates]
    assert row[1:6] == [*figures[:2], memory, *figures[2:]]
    assert ("torus" not in row[6], f" {chip.torus} " in row[6]) in ((False, True), (True, False))
    assert f"{name}, " in help_texts(PlanArguments)["chip"]


@pytest.mark.parametrize(
    ("dtype", "own", "rate"), [("bfloat16", "", 312), ("float32", "", 312), ("float32", ",float32=156e12", 156)]
)
def test_a_chip_is_given_by_its_figures(said: Any, dtype: str, own: str, rate: int) -> None:
    words = [*RUN, "--model.dtype", dtype, "--chip"]
    command = [*words, f"flops=312e12,memory=80e9,bandwidth=2039e9,link=300e9{own}"]
    plans = json.loads(said([*command, "--json"]))["plans"]
    assert plans[0]["seconds"]["compute"] == pytest.approx(plans[0]["flops"] / rate / 1e12)
    assert f"per device, at {rate} TFLOP/s in {dtype}:" in said(command)
    named = json.loads(said([*words, "a100-80", "--json"]))["plans"]
    assert (plans == named) == (dtype == "bfloat16" or bool(own))


def test_the_command_says_that_none_fits(said: Any) -> None:
    huge = [*RUN, "--mesh.data", "16", "--experts", "128"]
    *_, mesh, _, last = said(huge).splitlines()
    assert mesh == "Meshes that do not fit: data 16"
    assert last.startswith("No mesh fits into 15.75 GiB.")


def test_an_evaluation_batch_that_divides() -> None:
    assert options(config(evaluation_batch=100), MeshSizes(8)) == "--mesh.data 8 --training.evaluation-batch 104"
    grouped = config(model=replace(SMALL, group_images=8), evaluation_batch=96)
    assert options(grouped, MeshSizes(8)) == "--mesh.data 8 --training.evaluation-batch 128"


@pytest.mark.parametrize("name", configfile.recipes())
def test_a_recipe_fits_where_it_says(name: str, said: Any) -> None:
    """With the options that it names alone: the evaluation batch fills the groups of each device, too."""
    text = configfile.find_recipe(name).read_text()
    found = re.findall(r"^# Fits: moespec (plan --config \w+ .*) \(([\d.]+) GiB a device\)$", text, re.MULTILINE)
    assert found
    for command, memory in found:
        (only,) = json.loads(said([*(words := command.split()), "--json"]))["plans"]
        assert words[2] == name
        assert only["fits"]
        assert set(only["options"].split()) <= set(words)
        assert f"{only['bytes'] / 2**30:.1f}" == memory


def test_images_are_those_that_the_data_are_known_to_have(tmp_path: Path, said: Any) -> None:
    """28 x 28 x 1 pixels of Fashion-MNIST; of a folder nobody knows them, and the model is one for digits."""
    (own := tmp_path / "recipe.toml").write_text('[data]\nname = "folder"\n')
    known = "vit_tiny: 571,259 parameters, 40.1 MFLOP per image of 28 x 28 pixels\n"
    for command in (["plan", "--devices", "1", "--chip", "h100", "--config"], ["count", "--config"]):
        assert said([*command, "fashion_mnist"]).startswith(known)
        assert said([*command, str(own)], 2).startswith(
            "moespec: model.image_size is not set: model.name='vit_tiny' is"
        )
        assert " per image of 64 x 64 pixels" in said([*command, str(own), "--model.image-size", "64"])


def test_sharding(said: Any) -> None:
    given = ["--mesh.data", "2", "--mesh.fsdp", "2", "--mesh.expert", "4"]
    lines = said([*RUN, *given, "--sharding"]).splitlines()
    assert lines[0] == "vit_b16 on data 2 x fsdp 2 x expert 4: float32 parameters, bytes per device"
    (experts,) = [line for line in lines if "experts/w1" in line]
    cells = [cell.strip() for cell in experts.split("  ") if cell.strip()]
    one = 32 * 768 * 3072 * 4 // 8
    assert cells == [
        *("blocks/{6-11}/moe/experts/w1", "32 x 768 x 3072", "expert, -, fsdp"),
        *(f"{one:,}", "6", f"{6 * one:,}"),
    ]
    report = json.loads(said([*RUN, *given, "--sharding", "--json"]))
    total = sum(row["bytes"] * row["parameters"] for row in report["parameters"])
    assert f"{total:,}" in lines[-1]
