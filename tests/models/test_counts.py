"""The counted cost of a model: the figures that papers print, and what XLA counts in the compiled one."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import moespec.backends.jax as B
from moespec.models import counts, families
from moespec.models.layers import Experts, MoeLayer
from moespec.models.pytrees import flatten, nested
from moespec.spec.routers import ROUTERS

PAPER = [
    # Puigcerver et al. 2024 (arXiv 2308.00951), Table 1: parameters, GFLOP an image, steps and exaFLOP. ViT B/16 to H/14 and the Soft
    # MoEs round to them with query and key normalised, S/16 either way. Heads are those of JFT-4B.
    ("vit_s16", {}, "33M", 9.2, 4e6, 227.1),
    ("vit_b16", {}, "108M", 35.1, 4e6, 864.1),
    ("vit_l16", {}, "333M", 122.9, 4e6, 3025.4),
    ("vit_h14", {}, "669M", 334.2, 2e6, 4120.3),
    ("vit_s14", {"experts": 256}, "1.8B", 13.2, 1e7, 814.2),
    ("vit_b16", {"experts": 128}, "3.7B", 32.0, 9e6, 1769.5),
    ("vit_l16", {"experts": 128}, "13.1B", 111.1, 4e6, 2734.1),
]


def config(name: str, **fields):  # type: ignore[no-untyped-def]
    return families.of_name(name).named(name, **fields)


@pytest.mark.parametrize(("name", "fields", "parameters", "gflop", "steps", "exaflop"), PAPER)
def test_the_figures_of_the_paper(
    name: str, fields: dict, parameters: str, gflop: float, steps: float, exaflop: float
) -> None:
    """Its exaFLOP, of steps of 4096 images, count a multiply-add once, and its GFLOP twice."""
    if fields:
        fields = {**fields, "moe": "last_half", "router": "soft_moe", "router_options": {"slots_per_expert": 1}}
    model = config(name, classes=29_593, qk_norm=True, **fields)
    assert counts.training_flops(model, int(4096 * steps)) / 2e18 == pytest.approx(exaflop, rel=4e-3)
    assert round(sum(counts.flops(model).values()) / 1e9, 1) == gflop
    count = families.family(model).parameter_count(model)
    # 108.6 million are printed as 108 M and 333.6 as 333 M, but 668.7 as 669 M: some are cut, some are rounded.
    number, unit = float(parameters[:-1]), {"M": 1e6, "B": 1e9}[parameters[-1]]
    assert abs(count / unit - number) < (1.0 if unit == 1e6 else 0.1)


def test_training_counts_its_own_capacity_and_what_is_computed_again() -> None:
    settings: dict = {"capacity_factor": 2.0, "eval_capacity_factor": 1.0}
    model = config("vit_s16", moe="last_half", router="softmax_token_choice", experts=8, router_options=settings)
    trained, evaluated = (sum(counts.flops(model, train=train).values()) for train in (True, False))
    assert counts.training_flops(model, 10) == 30 * trained > 30 * evaluated
    assert counts.training_flops(model, 6, passes=4) == counts.training_flops(model, 8)


ALONE = {"base": 1, "hash": 1, "s_base": 1, "noisy_top_k": 2, "hierarchical_top_k": 4, "dselect_k": 2,
         "sigmoid_token_choice": 2, "image_choice": 1}  # fmt: skip
"""Routers that give an expert room for every token, and the choices of a token: the experts run in a loop."""
GATED: dict = {"moe": "every_2", "experts": 32, "router": "softmax_token_choice"}
GATED |= {"expert_hidden": 512, "expert_activation": "swiglu"}
OTHER = {"expert_activation": "geglu", "expert_bias": False, "experts": 8}
MODELS = [
    *(("vit_s16", {"pool": pool}) for pool in ("gap", "token", "map")),
    ("vit_s16", {"qk_norm": True, "qk_norm_bias": True}),
    ("vit_s16", {"registers": 4, "pre_norm": True, "layer_scale": 0.1, "qkv_bias": False, "pool": "gap_norm"}),
    ("vit_s16", {"stem": 4, "stem_depth": 2, "representation": 512, "positions": "none"}),
    ("mixer_s16", {}),
    ("mixer_tiny", {}),
    ("sparse_mlp_s", {}),
    ("sparse_mlp_b", {}),
    ("sparse_mlp_b", {"router": "softmax_token_choice"}),
    *(("vit_b16", {"moe": "last_1", "experts": 8, "router": name}) for name in ("gshard", "mixture_of_depths", "relu")),
    ("vit_s16", {"moe": "every_2", "experts": 32, "router": "soft_moe", "group_images": 2}),
    ("vit_s16", {"moe": "every_2", "experts": 32, "router": "softmax_token_choice", "group_tokens": 98}),
    ("vit_s16", {**GATED, "shared_experts": 2, "block": {"3": OTHER}}),
    ("vit_s16", {**GATED, "latent_width": 96, "latent_norm": True, "shared_experts": 1, "shared_gate": True}),
    ("vit_s16", {**GATED, "shared_experts": 2, "copy_experts": 1, "zero_experts": 1, "constant_experts": 2}),
    ("text_s", {"qk_norm": True, "projection": 512}),
    ("text_s", {"pool": "map", "moe": "every_2", "experts": 8, "router": "softmax_token_choice", "group_texts": 2}),
]


@pytest.mark.parametrize(("name", "fields"), MODELS)
def test_what_xla_counts(name: str, fields: dict) -> None:
    """To 0.1 %. XLA counts no iteration but the first of a loop, which leaves out `ALONE`."""
    model = config(name, **{"depth": 4, **fields})
    images = families.fewest_images(model)
    family = families.family(model)
    batch = jax.ShapeDtypeStruct((images, *model.input_shape), jnp.int32 if model.inputs == "ids" else jnp.float32)
    wanted = "features" if model.inputs == "ids" else "logits"
    forward = jax.jit(lambda p, x: getattr(family.forward(B, model, p, x), wanted))
    shapes = flatten(family.parameter_shapes(model))
    params = nested({path: jax.ShapeDtypeStruct(shape, jnp.float32) for path, shape in shapes.items()})
    lowered = forward.lower(params, batch)
    counted = sum(counts.flops(model, images).values())
    np.testing.assert_allclose(counted, lowered.cost_analysis()["flops"] / images, rtol=1e-3)


def routed(name: str, **settings: float) -> tuple[MoeLayer, np.ndarray]:
    """A layer of 32 tokens and 4 experts, and the dispatch of random tokens at evaluation."""
    router = B.ROUTERS[name]
    ids = {"ids": 8} if router.requires else {}
    options = router.options(width=16, experts=4, tokens=32, **ids, **settings)
    given = {"ids": jnp.zeros((1, 32), jnp.int32)} if ids else {}
    random = np.random.default_rng(0)
    tokens = jnp.asarray(random.normal(size=(1, 32, 16)), jnp.float32)
    dispatch = (
        router.route(router.init(random, options), tokens, options, state=router.initial_state(options), **given)
        .routing.dense()
        .dispatch
    )
    return MoeLayer("0", name, options, 1, "patches", Experts(8)), np.asarray(dispatch)


def test_slots_and_rows_of_training() -> None:
    layer, _ = routed("softmax_token_choice", capacity_factor=2.0, eval_capacity_factor=1.0)
    assert counts.slots(layer, train=True) == counts.rows(layer, train=True) == 64
    assert counts.slots(layer) == counts.rows(layer) == 32
    hashed, _ = routed("hash")
    assert (counts.rows(hashed, train=True), counts.rows(hashed, train=True, every_slot=True)) == (32, 4 * 32)


@pytest.mark.parametrize("name", ROUTERS)
def test_slots_are_those_of_the_router_and_rows_the_slots_or_those_that_are_filled(name: str) -> None:
    room = {"eval_capacity_factor": 2.0} if hasattr(B.ROUTERS[name].Options, "eval_capacity_factor") else {}
    layer, dispatch = routed(name, **room)
    assert counts.slots(layer) == dispatch.shape[2] * dispatch.shape[3]
    layer, dispatch = routed(name)
    if name not in ALONE:
        assert counts.rows(layer) == counts.slots(layer)
    else:
        assert counts.rows(layer) == 32 * ALONE[name]
        # The selectors of DSelect-k are not sharp before training.
        assert name == "dselect_k" or dispatch.sum() == 32 * ALONE[name]


def test_the_command(said: Any) -> None:
    shown = said(["count", "--model", "vit_b16", "--model.moe", "none", "--model.classes", "1000"])
    first, blocks, *parts = shown.splitlines()
    assert first == "vit_b16: 86,566,120 parameters, 35.1 GFLOP per image of 224 x 224 pixels"
    assert blocks == "  no MoE blocks"
    assert [part.split("  ")[1] for part in parts][:2] == ["embedding", "attention"]
    shares = [float(part.rsplit(None, 1)[1].rstrip("%")) for part in parts]
    assert sum(shares) == pytest.approx(100, abs=0.5)
    words = "MoE blocks 10, 11 (of 0 to 11): importance_score with 8 experts and softmax_token_choice with 4 experts"
    assert said(["count", "--model", "sparse_mlp_b"]).splitlines()[1].strip() == words


def test_the_command_counts_a_run(said: Any) -> None:
    """Of so many images, or as long as the configuration says, if it does not say it in epochs."""
    run = "  training on 16,384,000,000 images: 1724.0 EFLOP (3 forward passes per image)"
    dense = ["count", "--model", "vit_b16", "--model.moe", "none"]
    assert said([*dense, "--examples", str(4096 * 4_000_000)]).splitlines()[-1] == run
    assert "\n  training on 36,864,000,000 images: " in said(["count", "--config", "soft_moe_b16"])
    assert "training on" not in said(["count", "--config", "sparse_mlp_b"])
    for recipe, passes in {
        "sparse_mlp_s_moco": "8 forward passes per image",
        "laion_soft_moe_s16": "3 forward passes per image, 3 forward passes per text",
    }.items():
        assert said(["count", "--config", recipe, "--examples", "9"]).endswith(f" ({passes})\n")
    assert "examples=0: expected an integer of at least 1" in said(["count", "--examples", "0"], 2)
