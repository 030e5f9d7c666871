"""The NumPy backend: the specification group by group, exact gradients, and steps of training."""

import inspect
from typing import Any, NamedTuple

import numpy as np
import pytest
from router_inputs import perceptrons

import moespec.backends.numpy as B
from moespec.backends.directions import derivatives, units
from moespec.backends.numpy.groups import batched
from moespec.spec.array_like import ArrayLike
from moespec.spec.errors import ShapeError
from moespec.spec.numerics import Shared

G, T, E, D = 3, 6, 4, 5


@pytest.fixture
def rng():
    return np.random.default_rng(0)


assert_same = np.testing.assert_array_equal


class Pair(NamedTuple):
    order: Any
    value: Any


def specified(x: ArrayLike, scale: Shared, mask: ArrayLike | None = None, *, power: int = 1) -> Pair:
    x, mask = np.asarray(x), np.ones(len(x), bool) if mask is None else np.asarray(mask)
    return Pair(np.argsort(-x), np.sum((x[mask] * scale) ** power))


def test_a_function_of_one_group_is_mapped_over_the_groups(rng):
    """By its types: `scale` is shared by the groups, the rest is not; integers become int32."""
    x, mask = rng.random((G, T)), rng.random((G, T)) > 0.3
    mapped = batched(specified)
    assert inspect.signature(mapped) == inspect.signature(specified)
    got = mapped(x, [2.0], mask, power=2)
    assert got.order.dtype == np.int32
    for g in range(G):
        assert_same(got.order[g], specified(x[g], [2.0], mask[g], power=2).order)
        assert_same(got.value[g], specified(x[g], [2.0], mask[g], power=2).value)
    assert_same(mapped(x, scale=1.0).value, mapped(x, 1.0, None).value)
    with pytest.raises(ShapeError, match="mask: has 2 groups, but x has 3"):
        mapped(x, 1.0, mask[:2])
    with pytest.raises(TypeError, match="width"):
        mapped(x, 1.0, width=3)


def loss_of_a_layer(params, batch):
    """A router, experts and a loss: everything a model differentiates through."""
    config = B.ROUTERS["softmax_token_choice"].options(width=D, experts=E, tokens=T, choices=2)
    output = B.ROUTERS["softmax_token_choice"].route(params["router"], batch["tokens"], config, noise=batch["noise"])
    y = B.moe_layer(batch["tokens"], output.routing, lambda inputs: B.expert_mlp(inputs, params["experts"]))
    return B.mean(y * y) + sum(output.losses.values()), {}


@pytest.mark.parametrize(
    "function",
    [
        lambda x: np.where(x.real > 0, np.exp(x), x * x) @ x.T,
        lambda x: np.tensordot(x, np.stack([x[:, 0], x[:, 1]], axis=-1), 1) / x.reshape(-1, 3).mean(),
        lambda x: np.einsum("ij,kj->ki", x, x).sum(axis=-1, keepdims=True) - np.cumsum(x, axis=0)[..., 1:],
        lambda x: np.take_along_axis(x, np.argsort(-x.real, axis=1), axis=1).prod(axis=0),
        lambda x: [np.put_along_axis(y := np.zeros_like(x), np.array([[1], [0], [2]]), x[:, :1], 1), y][1],
        lambda x: [y := np.zeros_like(x), y.__setitem__(1, x[2]), np.asarray(y).real * y][2],
    ],
)
def test_a_pass_has_the_derivatives_of_all_directions(rng, function):
    calls, x = [], rng.standard_normal((3, 3))

    def result(step):
        calls.append(step)
        return {"y": function(x + step)}

    together = derivatives(result, units(x))["y"]
    assert len(calls) == 1
    assert_same(together.shape[-1], x.size)
    one_by_one = [np.imag(function(x + 1e-30j * unit)) / 1e-30 for unit in units(x)]
    np.testing.assert_allclose(together, np.stack(one_by_one, axis=-1), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: np.asarray(x) * 1.0,
        lambda x: np.exp(np.asarray(x)),
        lambda x: x.imag * 1j,
        lambda x: np.angle(x) * 1j,
        lambda x: np.add(x, x, out=np.zeros(3, complex)),
        lambda x: [y := np.zeros(3, complex), np.copyto(y, x)][0],
        lambda x: [y := np.zeros(3, complex), y.__setitem__(0, x[0])][0],
    ],
)
def test_what_does_not_know_of_directions_sees_one_after_the_other(function, recwarn):
    x = np.array([1.0, -2.0, 3.0])
    together = derivatives(lambda step: {"y": function(x + step)}, units(np.ones(3)))["y"]
    assert not [each for each in recwarn if each.category is RuntimeWarning]
    one_by_one = [np.imag(function(x + 1e-30j * unit)) / 1e-30 for unit in np.eye(3)]
    np.testing.assert_allclose(together, np.stack(one_by_one, axis=-1), rtol=1e-13)


def test_a_model_is_differentiated_in_few_passes(rng):
    experts = perceptrons(lambda *shape: rng.standard_normal(shape), E, D, 2)
    params = {"router": {"kernel": rng.standard_normal((D, E))}, "experts": experts}
    batch, calls = {"tokens": rng.standard_normal((4, T, D)), "noise": rng.standard_normal((4, T, E))}, []
    B.value_and_grad(lambda *arguments: calls.append(arguments) or loss_of_a_layer(*arguments))(params, batch)
    assert len(calls) == 3  # the value, and 64 each of 128 parameters
