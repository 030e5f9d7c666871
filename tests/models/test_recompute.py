"""Blocks that are computed anew in the backward pass: the same loss and gradients, and less that is kept for it."""

import importlib
from dataclasses import replace

import jax
import numpy as np
import pytest

from moespec.models import families, mixer, sparse_mlp, vit
from moespec.models.draws import of_step
from moespec.models.training.objective import make_loss

VIT = vit.VitConfig(
    image_size=8,
    patch_size=2,
    width=16,
    depth=4,
    hidden=32,
    heads=2,
    classes=3,
    moe="every_2",
    experts=4,
    router="softmax_token_choice",
    dropout=0.1,
    stochastic_depth=0.2,
)
CONFIGS = {
    "vit": VIT,
    "mixer": mixer.named("mixer_tiny", classes=3),
    "sparse_mlp": sparse_mlp.named("sparse_mlp_tiny", classes=3, moe="last_1"),
}


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
    B, params, batch = problem("jax", VIT)
    sizes = []
    for recompute in (False, True):
        loss = make_loss(B, VIT, "softmax", recompute=recompute)

        def backward(params, batch=batch, loss=loss):  # type: ignore[no-untyped-def]
            return jax.vjp(lambda p: loss(p, batch)[0], params)[1]

        kept = jax.tree.leaves(jax.eval_shape(backward, params))
        sizes.append(sum(leaf.size for leaf in kept) - vit.parameter_count(VIT))
    assert sizes[1] < 0.2 * sizes[0]


def test_torch_keeps_less() -> None:
    """What autograd saves outside of the blocks is what goes into them."""
    torch = pytest.importorskip("torch")
    B, params, batch = problem("torch", VIT)
    kept = []
    for recompute in (False, True):
        saved: list[int] = []

        def pack(tensor, saved=saved):  # type: ignore[no-untyped-def]
            saved.append(tensor.numel())
            return tensor

        loss = make_loss(B, VIT, "softmax", recompute=recompute)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            B.value_and_grad(loss)(params, batch)
        kept.append(sum(saved))
    assert kept[1] < 0.1 * kept[0]
