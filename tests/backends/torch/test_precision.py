"""What the conformance suite does not check of the torch backend: sixteen bits and autocast."""

import importlib

import numpy as np
import pytest
from router_inputs import perceptrons

torch = pytest.importorskip("torch")
B = importlib.import_module("moespec.backends.torch")

GROUPS, TOKENS, EXPERTS, WIDTH, HIDDEN = 3, 12, 5, 6, 7


def draw(*shape, scale=1.0):
    return np.random.default_rng(shape).normal(size=shape) * scale


LOGITS = draw(GROUPS, TOKENS, EXPERTS, scale=2.0)
X, KERNEL, SLOTS = draw(GROUPS, TOKENS, WIDTH), draw(WIDTH, EXPERTS), draw(WIDTH, EXPERTS, 4)
MLP = perceptrons(draw, EXPERTS, WIDTH, HIDDEN)


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
