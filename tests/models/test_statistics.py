"""What evaluation reports of MoE layers besides their metrics: which routers have which scalars, and their values."""

from typing import Any

import numpy as np
import pytest

import moespec.backends.numpy as B
from moespec.models import vit
from moespec.models.evaluation.metrics import line, make_forward
from moespec.models.families import family
from moespec.models.training.objective import make_loss

SMALL: dict[str, Any] = {
    **{"image_size": 8, "patch_size": 2, "channels": 1, "classes": 3, "width": 8, "depth": 2, "hidden": 6, "heads": 2},
    **{"moe": "last_1", "experts": 4},
}
SOFT = {"dispatch_max", "combine_max"}
SPARSE = {"experts_min", "experts_max", "at_least_1", "at_least_2", "at_least_4"}


def reported(router: str, **options: Any) -> tuple[dict[str, float], dict[str, float], Any]:
    """The metrics of the layer at evaluation, its metrics in training, and its dense routing at evaluation."""
    fields = {} if router != "hash" else {"token_ids": "position"}
    model = vit.VitConfig(**{**SMALL, **fields}, router=router, router_options=options)
    params = B.from_numpy(family(model).init(model, 1))
    images = np.random.default_rng(2).standard_normal((3, 8, 8, 1))
    batch = {"images": images, "targets": np.eye(3)}
    _, trained = make_loss(B, model, "softmax")(params, batch)
    _, evaluated = make_forward(B, model)(params, images)
    (routing,) = family(model).forward(B, model, params, images).routings
    start = "moe/1/"
    return (
        {name.removeprefix(start): value for name, value in evaluated.items()},
        {name.removeprefix(start): value for name, value in trained.items() if name.startswith(start)},
        routing.dense(),
    )


def test_of_a_soft_router_how_close_it_is_to_collapse() -> None:
    evaluated, trained, routing = reported("soft_moe")
    assert evaluated["dispatch_max"] == pytest.approx(routing.dispatch.max(axis=1).mean(), rel=1e-12)
    assert evaluated["combine_max"] == pytest.approx(routing.combine.max(axis=(2, 3)).mean(), rel=1e-12)
    assert not SPARSE & evaluated.keys()
    assert not SOFT & trained.keys(), "a training step computes none"


def test_of_a_sparse_router_how_many_experts_process_a_token() -> None:
    evaluated, trained, routing = reported("softmax_expert_choice", capacity_factor=2.0)
    count = (routing.dispatch > 0).any(axis=3).sum(axis=2)
    assert count.min() < count.max(), "tokens differ"
    assert evaluated["experts_min"] == count.min(axis=1).mean()
    assert evaluated["experts_max"] == count.max(axis=1).mean()
    for number in (1, 2, 4):
        assert evaluated[f"at_least_{number}"] == pytest.approx((count >= number).mean(), rel=1e-12)
    assert evaluated["at_least_1"] == pytest.approx(evaluated["coverage"], rel=1e-12)
    assert not SOFT & evaluated.keys()
    assert not SPARSE & trained.keys(), "a training step computes none"


def test_several_hashes_have_none_and_one_hash_has_them() -> None:
    """The reported routing of MultiHash is that of its first hash, though each token meets the experts of all."""
    several, one = reported("hash", hashes=2)[0], reported("hash")[0]
    assert not (SOFT | SPARSE) & several.keys()
    assert one["experts_min"] == one["experts_max"] == 1


def test_the_line_of_a_layer_has_every_scalar_and_the_loads() -> None:
    metrics = {"coverage": 1.0, "load": [0.25, 0.75], "dispatch_max": 0.5, "z_loss": 3.0}
    assert line(metrics) == "coverage 1.000, dispatch_max 0.500, load 0.250 0.750"
