"""What the conformance suite does not check of the torch backend: dtypes, autocast, zeros, errors that name arguments."""

import importlib

import numpy as np
import pytest

from moespec import spec

torch = pytest.importorskip("torch")
B = importlib.import_module("moespec.backends.torch")

GROUPS, TOKENS, EXPERTS, WIDTH, HIDDEN = 3, 12, 5, 6, 7


def draw(*shape, scale=1.0):
    return np.random.default_rng(shape).normal(size=shape) * scale


LOGITS = draw(GROUPS, TOKENS, EXPERTS, scale=2.0)
X, KERNEL, SLOTS = draw(GROUPS, TOKENS, WIDTH), draw(WIDTH, EXPERTS), draw(WIDTH, EXPERTS, 4)
MLP = {
    "w1": draw(EXPERTS, WIDTH, HIDDEN),
    "b1": draw(EXPERTS, HIDDEN),
    "w2": draw(EXPERTS, HIDDEN, WIDTH),
    "b2": draw(EXPERTS, WIDTH),
}


def test_sixteen_bits():
    """Affinities, weights and losses stay in float32; the layer returns the dtype of the tokens."""
    x, kernel, mlp = B.from_numpy((X, KERNEL, MLP), "bfloat16")
    logits = B.router_logits(x, kernel)
    scores = B.softmax_affinity(logits)
    plan = B.sparse_transport_affinity(scores.bfloat16(), capacity=3)
    for tensor in (logits, scores, plan, B.sinkhorn_affinity(logits.bfloat16()), B.z_loss(logits.bfloat16())):
        assert tensor.dtype == torch.float32
    for routing in (
        B.token_choice(scores.bfloat16(), choices=2, capacity=3),
        B.expert_choice(scores.bfloat16(), capacity=3),
        B.soft_routing(x, B.from_numpy(SLOTS, "bfloat16")),
    ):
        weights = routing.combine if hasattr(routing, "combine") else routing.weight
        assert weights.dtype == torch.float32
        y = B.moe_layer(x, routing, lambda inputs: B.expert_mlp(inputs, mlp))
        assert y.dtype == torch.bfloat16
        wide = B.moe_layer(x.double(), routing, lambda inputs: B.expert_mlp(inputs, mlp))
        torch.testing.assert_close(y.double(), wide, rtol=3e-2, atol=3e-2)


def test_sixteen_bit_outputs_are_weighted_and_summed_in_float32():
    """So that the result is rounded once, whatever cancels in the sum."""
    scores = B.softmax_affinity(B.from_numpy(LOGITS, "float32"))
    x = B.from_numpy(X, "bfloat16")
    signs = B.from_numpy(np.array([1.0, -1.0, 1.0, -1.0, 1.0]), "bfloat16")[:, None, None]
    for routing in (B.token_choice(scores, choices=3, capacity=9), B.expert_choice(scores, capacity=9)):
        got, want = (B.moe_layer(tokens, routing, lambda inputs: inputs * signs) for tokens in (x, x.double()))
        assert ((got.double() - want).abs() <= 2**-8 * want.abs()).all()


def test_autocast_does_not_lower_the_precision_of_routing():
    x, kernel, slots, mlp = B.from_numpy((X, KERNEL, SLOTS, MLP), "float32")

    def compute():
        logits = B.router_logits(x, kernel)
        soft = B.soft_routing(x, slots)
        y = B.moe_layer(x, soft, lambda inputs: B.expert_mlp(inputs, mlp))
        return [logits, B.softmax_affinity(logits), B.sinkhorn_affinity(logits), B.z_loss(logits), *soft], y

    exact, y = compute()
    with torch.autocast(B.default_device().type, torch.bfloat16):
        cast, y_cast = compute()
    for want, got in zip(exact, cast, strict=True):
        assert torch.equal(want, got)
    assert y_cast.dtype == torch.float32
    assert not torch.equal(y, y_cast)
    torch.testing.assert_close(y, y_cast, rtol=5e-2, atol=5e-2)


def test_zero_tokens_have_a_gradient():
    """The norm of a zero vector counts as a constant."""
    x = torch.zeros(1, 3, 2, dtype=torch.float64, requires_grad=True)
    B.soft_routing(x, torch.ones(2, 2, 1, dtype=torch.float64)).dispatch.square().sum().backward()
    assert torch.isfinite(x.grad).all()


SOME = torch.rand(2, 4, 3, generator=torch.Generator().manual_seed(0))
ROUTED = B.token_choice(SOME, choices=1, capacity=2)
BAD_MLP = {"w1": torch.ones(3, 5, 6), "b1": torch.ones(3, 6), "w2": torch.ones(3, 4, 5), "b2": torch.ones(3, 5)}

INVALID = [
    (spec.ConfigError, "choices", lambda: B.token_choice(SOME, choices=4, capacity=1)),
    (spec.ConfigError, "choices", lambda: B.load_loss(SOME, SOME, choices=0, noise_std=1.0)),
    (spec.ConfigError, "capacity", lambda: B.token_choice(SOME, choices=1, capacity=0)),
    (spec.ConfigError, "capacity", lambda: B.expert_choice(SOME, capacity=5)),
    (spec.ConfigError, "by", lambda: B.batch_priority(SOME, by="min")),
    (spec.ConfigError, "solver", lambda: B.sparse_transport_affinity(SOME, capacity=2, solver="lbfgs")),
    (spec.ConfigError, "sparsity", lambda: B.sparse_transport_affinity(SOME, capacity=2, sparsity="rows")),
    (spec.ConfigError, "iterations", lambda: B.sinkhorn_affinity(SOME, iterations=0)),
    (spec.ConfigError, "multiplier", lambda: B.add_gating_noise(SOME, SOME, multiplier=-1.0)),
    (spec.ConfigError, "nonzeros", lambda: B.project_sparse_simplex(SOME, nonzeros=4)),
    (spec.ConfigError, "norm_form", lambda: B.soft_routing(SOME, torch.ones(3, 2, 2), norm_form="l1")),
    (spec.ConfigError, "dispatch", lambda: B.soft_routing(SOME, torch.ones(3, 2, 2), dispatch="identity")),
    (spec.ConfigError, "form", lambda: B.gelu(SOME, form="quick")),
    (spec.ConfigError, "dtype", lambda: B.from_numpy(X, "float8")),
    (spec.ShapeError, "logits", lambda: B.softmax_affinity(SOME[0])),
    (spec.ShapeError, "kernel", lambda: B.router_logits(SOME, torch.ones(4, 3))),
    (spec.ShapeError, "order", lambda: B.token_choice(SOME, choices=1, capacity=1, order=torch.zeros(2, 3).int())),
    (spec.ShapeError, "combine_scores", lambda: B.expert_choice(SOME, capacity=1, combine_scores=SOME[:, :, :2])),
    (spec.ShapeError, "potential", lambda: B.transport_semi_dual(torch.ones(2, 3), SOME, capacity=2)),
    (spec.ShapeError, "scale", lambda: B.soft_routing(SOME, torch.ones(3, 2, 2), scale=torch.ones(1))),
    (spec.ShapeError, "w2", lambda: B.expert_mlp(torch.ones(2, 3, 4, 5), BAD_MLP)),
    (spec.ShapeError, "images", lambda: B.patch_embed(torch.ones(2, 5, 4, 3), torch.ones(2, 2, 3, 7), torch.ones(7))),
    (spec.ShapeError, "value", lambda: B.attention(SOME[None], SOME[None], SOME[None, :, :2])),
    (spec.ShapeError, "routing.tokens", lambda: B.moe_layer(SOME[:, :3], ROUTED, lambda x: x)),
    (spec.ShapeError, "experts", lambda: B.moe_layer(SOME, ROUTED, lambda x: x[:, :, :1])),
    (spec.DtypeError, "scores", lambda: B.token_choice(SOME.int(), choices=1, capacity=1)),
    (spec.DtypeError, "order", lambda: B.token_choice(SOME, choices=1, capacity=1, order=torch.ones(2, 4))),
]


@pytest.mark.parametrize(("error", "argument", "call"), INVALID)
def test_an_error_names_its_argument(error, argument, call):
    with pytest.raises(error, match=f"^{argument}:"):
        call()


def test_routers_check_their_options():
    router = B.ROUTERS["softmax_expert_choice"]
    options = router.options(width=3, experts=3, tokens=5)
    with pytest.raises(spec.ShapeError, match=r"options\.tokens"):
        router.route({"kernel": torch.rand(3, 3)}, torch.rand(2, 4, 3), options)
