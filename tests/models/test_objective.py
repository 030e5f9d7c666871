"""What training minimises: each auxiliary loss once, the routers told that it is training, and the noise that they take."""

from typing import Any

import numpy as np
import pytest

import moespec.backends.numpy as B
from moespec.models import sparse_mlp, vit
from moespec.models.draws import gating_noise, of_step
from moespec.models.evaluation.metrics import make_forward
from moespec.models.families import Config, family
from moespec.models.training.objective import draws, make_loss
from moespec.spec import sigmoid_cross_entropy, softmax_cross_entropy

SMALL: dict[str, Any] = {"image_size": 8, "patch_size": 4, "channels": 1, "classes": 3, "width": 8, "depth": 2}
TIGHT = {"capacity_factor": 0.5, "eval_capacity_factor": 1.5, "z_weight": 0.1}
SPARSE: dict[str, Any] = {
    **{"token_hidden": 5, "moe": "last_2", "sparse_tokens": 8, "sparse_width": 6, "token_experts": 2},
    **{"sparse_token_hidden": 4, "sparse_hidden": 4, "choices": 1, "router_options": TIGHT},
}


def transformer(router: str, options: dict[str, Any], **fields: Any) -> vit.VitConfig:
    return vit.VitConfig(
        **{**SMALL, "hidden": 6, "heads": 2, "moe": "last_2", "experts": 2, "router": router, **fields},
        router_options=options,
    )


MODELS: dict[str, Config] = {
    "vit": transformer("softmax_token_choice", {"choices": 1, **TIGHT}),
    "sparse_mlp": sparse_mlp.SparseMlpConfig(
        **SMALL, **SPARSE, hidden=6, experts=2, router="softmax_token_choice", group_images=1
    ),
}
"""Two or four MoE layers, which have half of the slots in training and all of them in evaluation."""


def parameters(model: Config) -> Any:
    """Initial parameters with a head that is not zero."""
    params = family(model).init(model, 1)
    params["head"]["kernel"] = np.random.default_rng(1).standard_normal(params["head"]["kernel"].shape)
    return B.from_numpy(params)


def batch_for(model: Config, images: int = 4) -> dict[str, Any]:
    random = np.random.default_rng(2)
    return {
        "images": random.standard_normal((images, 8, 8, 1)),
        "targets": random.dirichlet(np.ones(3), images),
        "random": of_step(images, seed=5, step=6),
    }


def noise_for(model: Config, images: int, *, seed: int = 5, step: int = 6) -> Any:
    """What the MoE layers take as noise at a step."""
    random = of_step(images, seed=seed, step=step)
    return gating_noise(B, family(model).moe_noise(model, images), random, np.zeros(images))


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
@pytest.mark.parametrize("name", MODELS)
def test_the_loss_is_the_mean_cross_entropy_and_each_loss_of_each_layer_once(name: str, kind: str) -> None:
    model = MODELS[name]
    params, batch = parameters(model), batch_for(model)
    loss, metrics = make_loss(B, model, kind)(params, batch)
    output = family(model).forward(B, model, params, batch["images"], noise=noise_for(model, 4), train=True)
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


@pytest.mark.parametrize("name", MODELS)
def test_every_router_is_told_whether_it_is_training(name: str) -> None:
    """Where it is, there is room for half of the tokens of every layer; where not, for all."""
    model = MODELS[name]
    params, batch = parameters(model), batch_for(model)
    _, metrics = make_loss(B, model, "softmax")(params, batch)
    _, quiet = make_forward(B, model)(params, batch["images"])
    layers_of = family(model).moe_layers(model, 4)
    for layer in layers_of:
        slots = [layer.settings.capacity(train=train) for train in (True, False)]
        assert slots[1] == 3 * slots[0]
    for train, found in ((True, metrics), (False, quiet)):
        output = family(model).forward(
            B, model, params, batch["images"], noise=noise_for(model, 4) if train else None, train=train
        )
        for layer, routing, own in zip(layers_of, output.routings, output.metrics, strict=True):
            assert routing.token.shape[2] == layer.settings.capacity(train=train)
            assert found[f"moe/{layer.name}/dropped"] == own["dropped"]
            assert found[f"moe/{layer.name}/dropped"] >= 0.5 or not train
    assert not any(name.endswith("load_loss") for name in quiet), "there is no noise in evaluation"


@pytest.mark.parametrize(
    ("router", "interval"), [("switch", (-1.0, 1.0)), ("gshard", (0.0, 1.0)), ("softmax_token_choice", None)]
)
def test_noise_is_of_the_distribution_of_its_router(router: str, interval: tuple[float, float] | None) -> None:
    """Thousands of draws reach the ends of the interval, and the tails of the normal distribution beyond it."""
    model = transformer(router, {}, image_size=64)
    found = noise_for(model, 32, seed=0, step=0)
    assert found is not None
    assert [noise.shape for noise in found] == [(32, *shape_of(router)) for _ in range(2)]
    values = np.concatenate([noise.ravel() for noise in found])
    low, high = interval or (-4.0, 4.0)
    if interval:
        assert low <= values.min() < low + 0.01
        assert high - 0.01 < values.max() <= high
    spread = (high - low) / np.sqrt(12) if interval else 1.0
    assert values.mean() == pytest.approx((low + high) / 2, abs=0.03)
    assert values.std() == pytest.approx(spread, rel=0.03)


def shape_of(router: str) -> tuple[int, ...]:
    return {"switch": (256, 8), "gshard": (256,), "softmax_token_choice": (256, 2)}[router]


def test_only_what_is_drawn_needs_integers() -> None:
    """Noise, dropout and stochastic depth, each alone; and a model with none of them gets nothing."""
    assert draws(MODELS["vit"], 4)
    assert not draws(transformer("soft_moe", {}), 4)
    assert not draws(transformer("softmax_token_choice", {"noise_multiplier": 0.0}), 4)
    assert draws(transformer("soft_moe", {}, dropout=0.1), 4)
    assert draws(transformer("soft_moe", {}, stochastic_depth=0.1), 4)
