"""Static faults raise the specification's errors, named, also while `jax.jit` traces."""

import importlib
from functools import partial

import numpy as np
import pytest

from moespec.backends.optimizer import OptimizerConfig
from moespec.spec import ConfigError, DtypeError, ShapeError

jax = pytest.importorskip("jax")
B = importlib.import_module("moespec.backends.jax")

SCORES = np.full((2, 6, 3), 1 / 3, np.float32)
X = np.ones((2, 6, 4), np.float32)
SLOTS = np.ones((4, 3, 2), np.float32)
ALPHA = np.zeros((2, 6), np.float32)
BETA = np.zeros((2, 3), np.float32)
MLP = {
    "w1": np.ones((3, 4, 5), np.float32),
    "b1": np.ones((3, 5), np.float32),
    "w2": np.ones((3, 5, 4), np.float32),
    "b2": np.ones((3, 4), np.float32),
}
HEADS = np.ones((2, 6, 2, 4), np.float32)

# function, arguments, options, error, what the message must name
FAULTS = [
    ("router_logits", (X, np.ones((5, 3), np.float32)), {}, ShapeError, r"kernel.*5.*expected 4"),
    ("router_logits", (X[0], np.ones((4, 3), np.float32)), {}, ShapeError, r"tokens.*\(6, 4\)"),
    ("softmax_affinity", (SCORES.astype(np.int32),), {}, DtypeError, "logits.*int32"),
    ("softmax_affinity", (SCORES[:, :0],), {}, ShapeError, r"logits.*\(2, 0, 3\)"),
    ("add_gating_noise", (SCORES, SCORES[:, :5]), {}, ShapeError, r"noise.*\(2, 5, 3\)"),
    ("add_gating_noise", (SCORES, SCORES), {"multiplier": -1.0}, ConfigError, "multiplier.*-1.0"),
    ("sinkhorn_affinity", (SCORES,), {"iterations": 0}, ConfigError, "iterations.*0"),
    ("sinkhorn_affinity", (SCORES,), {"tolerance": -0.1}, ConfigError, "tolerance.*-0.1"),
    ("project_sparse_simplex", (ALPHA,), {"nonzeros": 7}, ConfigError, "nonzeros.*7"),
    ("project_simplex", (ALPHA,), {"mass": 0.0}, ConfigError, "mass.*0.0"),
    ("transport_semi_dual", (ALPHA[:, :5], SCORES), {"capacity": 2}, ShapeError, "potential.*5"),
    ("transport_dual", (ALPHA, BETA[:1], SCORES), {"capacity": 2}, ShapeError, "expert_potential.*1"),
    ("sparse_transport_affinity", (SCORES,), {"capacity": 0}, ConfigError, "capacity.*0"),
    ("sparse_transport_affinity", (SCORES,), {"capacity": 4, "sparsity": "token"}, ConfigError, "capacity.*4"),
    ("sparse_transport_affinity", (SCORES,), {"capacity": 2, "solver": "lbfgs"}, ConfigError, "solver.*lbfgs"),
    ("sparse_transport_affinity", (SCORES,), {"capacity": 2, "sparsity": "row"}, ConfigError, "sparsity.*row"),
    ("sparse_transport_affinity", (SCORES,), {"capacity": 2, "steps": 0}, ConfigError, "steps.*0"),
    ("batch_priority", (SCORES,), {"by": "mean"}, ConfigError, "by.*mean"),
    ("token_choice", (SCORES,), {"choices": 4, "capacity": 1}, ConfigError, "choices.*4"),
    ("token_choice", (SCORES,), {"choices": 0, "capacity": 1}, ConfigError, "choices.*0"),
    ("token_choice", (SCORES,), {"choices": 1, "capacity": 0}, ConfigError, "capacity.*0"),
    ("token_choice", (SCORES,), {"choices": 1, "capacity": 1.5}, ConfigError, "capacity.*1.5"),
    ("token_choice", (SCORES[0],), {"choices": 1, "capacity": 1}, ShapeError, r"scores.*\(6, 3\)"),
    ("expert_choice", (SCORES,), {"capacity": 7}, ConfigError, "capacity.*7"),
    ("expert_choice", (SCORES.astype(bool),), {"capacity": 2}, DtypeError, "scores.*bool"),
    ("soft_routing", (X, SLOTS), {"norm_form": "l1"}, ConfigError, "norm_form.*l1"),
    ("soft_routing", (X, SLOTS), {"dispatch": "identity"}, ConfigError, "dispatch.*identity"),
    ("soft_routing", (X[:, :5], SLOTS), {"dispatch": "identity", "combine": "identity"}, ShapeError, "slots.*6.*5"),
    ("soft_routing", (X, SLOTS[:3]), {}, ShapeError, "slots.*3"),
    ("load_loss", (SCORES, SCORES), {"choices": 1, "noise_std": 0.0}, ConfigError, "noise_std.*0.0"),
    ("load_loss", (SCORES, SCORES[:1]), {"choices": 1, "noise_std": 1.0}, ShapeError, "noisy_logits"),
    ("importance_loss", (SCORES.astype(np.int8),), {}, DtypeError, "scores.*int8"),
    ("expert_mlp", (np.ones((2, 4, 2, 4), np.float32), MLP), {}, ShapeError, "w1.*3"),
    ("expert_mlp", (np.ones((2, 3, 2, 4), np.float32), MLP), {"gelu": "relu"}, ConfigError, "relu"),
    ("gelu", (X,), {"form": "relu"}, ConfigError, "form.*relu"),
    ("layer_norm", (X, np.ones(3, np.float32)), {}, ShapeError, "scale.*3"),
    ("attention", (HEADS, HEADS[..., :3], HEADS[..., :3]), {}, ShapeError, "key.*3"),
    (
        "convolution",
        (np.ones((1, 5, 4, 3), np.float32), np.ones((2, 2, 3, 4), np.float32), np.ones(4, np.float32)),
        {},
        ShapeError,
        "kernel.*odd.*2",
    ),
    (
        "patch_embed",
        (np.ones((1, 5, 4, 3), np.float32), np.ones((2, 2, 3, 4), np.float32), np.ones(4, np.float32)),
        {},
        ShapeError,
        "images.*5",
    ),
    ("softmax_cross_entropy", (X, X[:1]), {}, ShapeError, "targets"),
]


@pytest.mark.parametrize(("name", "arguments", "options", "error", "message"), FAULTS)
def test_fault(name, arguments, options, error, message):
    function = partial(getattr(B, name), **options)
    for call in (function, jax.jit(function)):
        with pytest.raises(error, match=message):
            call(*arguments)


def test_order_and_combine_scores_of_token_choice():
    allocate = partial(B.token_choice, SCORES, choices=1, capacity=2)
    with pytest.raises(DtypeError, match=r"order.*float32"):
        allocate(order=ALPHA)
    with pytest.raises(ShapeError, match=r"order.*\(6,\)"):
        allocate(order=np.arange(6))
    with pytest.raises(ShapeError, match="combine_scores"):
        allocate(combine_scores=SCORES[:1])


def test_moe_layer():
    routing = jax.eval_shape(partial(B.expert_choice, capacity=2), SCORES)
    soft = jax.eval_shape(B.soft_routing, X, SLOTS)
    for record in (routing, soft):
        layer = partial(jax.eval_shape, partial(B.moe_layer, experts=lambda x: x))
        assert layer(X, record).shape == X.shape
        with pytest.raises(ShapeError, match=r"tokens.*5"):
            layer(X[:, :5], record)
        with pytest.raises(ShapeError, match=r"tokens.*1 entries"):
            layer(X[:1], record)
        with pytest.raises(ShapeError, match="experts"):
            jax.eval_shape(partial(B.moe_layer, experts=lambda x: x[:, :1]), X, record)


def test_training():
    with pytest.raises(ConfigError, match=r"accumulate.*0"):
        B.make_step(None, OptimizerConfig(), accumulate=0)
    for options in ({"b1": 1.0}, {"b2": -0.1}, {"epsilon": 0.0}, {"weight_decay": -1.0}, {"clip": 0.0}):
        with pytest.raises(ConfigError, match=f"{next(iter(options))}.*{next(iter(options.values()))}"):
            OptimizerConfig(**options)
    step = B.make_step(lambda params, batch: (B.sum(params["w1"] * batch), {}), OptimizerConfig(), accumulate=2)
    with pytest.raises(ShapeError, match=r"batch.*3.*2 equal parts"):
        step(B.init_state({"w1": np.ones(2, np.float32)}, OptimizerConfig()), np.ones((3, 2), np.float32), 0.1)
