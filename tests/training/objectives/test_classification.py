"""What training minimises: each auxiliary loss once, the routers told that it is training, and the noise that they take."""

import importlib
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from of_models import drawn

import moespec.backends.numpy as B
from moespec.models import families, mixer, sparse_mlp, vit
from moespec.models.families import Config, draws, family
from moespec.models.random_keys import gating_noise, of_step
from moespec.spec import sigmoid_cross_entropy, softmax_cross_entropy
from moespec.training.objectives.classification import make_loss

SMALL: dict[str, Any] = {"image_size": 8, "patch_size": 4, "channels": 1, "classes": 3, "width": 8, "depth": 2}
TIGHT = {"capacity_factor": 0.5, "eval_capacity_factor": 1.5, "z_weight": 0.1}
SPARSE: dict[str, Any] = {
    **{"token_hidden": 5, "moe": "last_2", "sparse_tokens": 8, "sparse_width": 6, "token_experts": 2},
    **{"sparse_token_hidden": 4, "sparse_hidden": 4, "choices": 1, "router_options": TIGHT},
}


def transformer(router: str, options: dict[str, Any], **fields: Any) -> vit.VitConfig:
    fields = {**SMALL, "hidden": 6, "heads": 2, "moe": "last_2", "experts": 2, "router": router, **fields}
    return vit.VitConfig(**fields, router_options=options)


MODELS: dict[str, Config] = {
    "vit": transformer("softmax_token_choice", {"choices": 1, **TIGHT}),
    "sparse_mlp": sparse_mlp.SparseMlpConfig(
        **SMALL, **SPARSE, hidden=6, experts=2, router="softmax_token_choice", group_images=1
    ),
}
"""Two or four MoE layers, which have half of the slots in training and all of them in evaluation."""


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
@pytest.mark.parametrize("name", MODELS)
def test_the_loss_is_the_mean_cross_entropy_and_each_loss_of_each_layer_once(name: str, kind: str) -> None:
    model = MODELS[name]
    params, random = B.from_numpy(drawn(family(model).init(model))), np.random.default_rng(2)
    batch = {"images": random.standard_normal((4, 8, 8, 1)), "targets": random.dirichlet(np.ones(3), 4)}
    batch["random"] = of_step(4, seed=5, step=6)
    noise = gating_noise(B, family(model).moe_noise(model, 4), batch["random"], np.zeros(4))
    loss, metrics = make_loss(B, model, kind)(params, batch)
    output = family(model).forward(B, model, params, batch["images"], noise=noise, train=True)
    cross_entropy = {"softmax": softmax_cross_entropy, "sigmoid": sigmoid_cross_entropy}[kind]
    main = np.mean(cross_entropy(output.logits, batch["targets"]))
    names = [layer.name for layer in family(model).moe_layers(model, 4)]
    assert len(names) == {"vit": 2, "sparse_mlp": 4}[name]
    auxiliary = sum(
        weight * metrics[f"moe/{layer}/{loss}_loss"]
        for layer in names
        for loss, weight in (("importance", 0.005), ("load", 0.005), ("z", 0.1))
    )
    assert auxiliary > 0.01
    assert metrics["cross_entropy"] == pytest.approx(main, rel=1e-12)
    assert loss == pytest.approx(main + auxiliary, rel=1e-12)


def test_only_what_is_drawn_needs_integers() -> None:
    """Noise, dropout and stochastic depth, each alone; and a model with none of them gets nothing."""
    assert draws(MODELS["vit"], 4)
    assert not draws(transformer("soft_moe", {}), 4)
    assert not draws(transformer("softmax_token_choice", {"noise_multiplier": 0.0}), 4)
    assert draws(transformer("soft_moe", {}, dropout=0.1), 4)
    assert draws(transformer("soft_moe", {}, stochastic_depth=0.1), 4)


# Blocks that are computed anew in the backward pass: the same loss and gradients, and less that is kept for it.


DEEP = vit.VitConfig(
    **{"image_size": 8, "patch_size": 2, "classes": 3, "width": 16, "depth": 4, "hidden": 32, "heads": 2},
    **{"moe": "every_2", "experts": 4, "router": "softmax_token_choice", "dropout": 0.1, "stochastic_depth": 0.2},
)
SPARSE_TINY = sparse_mlp.named("sparse_mlp_tiny", classes=3, moe="last_1")
CONFIGS = {"vit": DEEP, "mixer": mixer.named("mixer_tiny", classes=3), "sparse_mlp": SPARSE_TINY}


def problem(backend: str, config: families.Config):  # type: ignore[no-untyped-def]
    """The backend, initial parameters and a batch of four images."""
    B = importlib.import_module(f"moespec.backends.{backend}")
    random = np.random.default_rng(0)
    images = random.normal(size=(4, config.image_size, config.image_size, config.channels)).astype(np.float32)
    batch = {"images": images, "targets": np.eye(3, dtype=np.float32)[[0, 1, 2, 1]]}
    batch["random"] = of_step(4, seed=0, step=1)
    return B, B.from_numpy(families.family(config).init(config)), B.from_numpy(batch)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_the_same_gradients(backend: str, name: str) -> None:
    config = replace(CONFIGS[name], depth=2)
    B, params, batch = problem(backend, config)
    found = []
    for recompute in (False, True):
        run = B.value_and_grad(make_loss(B, config, "softmax", recompute=recompute))
        (loss, metrics), gradient = B.to_numpy((B.compile(run) if backend == "jax" else run)(params, batch))
        found.append((loss, metrics, jax.tree.leaves(gradient)))
    (loss, metrics, gradient), (again, others, anew) = found
    np.testing.assert_allclose(again, loss, rtol=1e-6)
    assert metrics.keys() == others.keys()
    largest = max(np.abs(leaf).max() for leaf in gradient)
    for one, other in zip(gradient, anew, strict=True):
        np.testing.assert_allclose(other, one, rtol=0, atol=1e-6 * largest)


def test_jax_keeps_less() -> None:
    """What the forward pass hands to the backward pass, besides parameters, are the inputs of the blocks."""
    B, params, batch = problem("jax", DEEP)
    sizes = []
    for recompute in (False, True):
        loss = make_loss(B, DEEP, "softmax", recompute=recompute)

        def backward(params, batch=batch, loss=loss):  # type: ignore[no-untyped-def]
            return jax.vjp(lambda p: loss(p, batch)[0], params)[1]

        kept = jax.tree.leaves(jax.eval_shape(backward, params))
        sizes.append(sum(leaf.size for leaf in kept) - vit.parameter_count(DEEP))
    assert sizes[1] < 0.2 * sizes[0]


def test_torch_keeps_less() -> None:
    """What autograd saves outside of the blocks is what goes into them."""
    torch = pytest.importorskip("torch")
    B, params, batch = problem("torch", DEEP)
    kept = []
    for recompute in (False, True):
        saved: list[int] = []

        def pack(tensor, saved=saved):  # type: ignore[no-untyped-def]
            saved.append(tensor.numel())
            return tensor

        loss = make_loss(B, DEEP, "softmax", recompute=recompute)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            B.value_and_grad(loss)(params, batch)
        kept.append(sum(saved))
    assert kept[1] < 0.1 * kept[0]
