"""Routers of the user's own: each computes the same on NumPy, JAX and torch, and what is wrong with one is an error of one line."""

import importlib
from dataclasses import replace

import numpy as np
import pytest
from my_routers import averaged, nearest, tempered

from moespec.backends.optimizer import check_parameters
from moespec.backends.routers import composed
from moespec.models import vit
from moespec.spec import ROUTERS, ConfigError
from moespec.spec.routers import router_name

B = importlib.import_module("moespec.backends.numpy")


@pytest.mark.parametrize("backend", ["jax", "torch"])
@pytest.mark.parametrize("router", [averaged.ROUTER, nearest.ROUTER, tempered.ROUTER], ids=str)
def test_backends_compute_what_numpy_does(router, backend):
    """Which computes one group after another; on groups, losses are means and statistics sums."""
    torch = pytest.importorskip("torch")
    random, other = np.random.default_rng(3), pytest.importorskip(f"moespec.backends.{backend}")
    options = router.options(width=6, experts=5, tokens=11, choices=2, capacity_factor=0.8)
    params = {name: random.uniform(0.5, 2, value.shape) for name, value in router.init(random, options).items()}
    state = {name: random.random(value.shape, np.float32) for name, value in router.initial_state(options).items()}
    tokens, name = random.normal(size=(3, 11, 6)), router_name(router)

    def computed(B, router):
        given = B.from_numpy(state)
        output = router.route(B.from_numpy(params), B.from_numpy(tokens), options, state=given or None)
        new = router.update(options, given, output.statistics) if state else {}
        return B.to_numpy([output.routing.dense().combine, output.losses, output.metrics, new])

    expected = computed(B, B.ROUTERS[name])
    for found in (computed(other, other.ROUTERS[name]), computed(B, composed(B)[name])):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6, check_dtype=False)


def routed(route):
    """What a router with this `route` computes."""
    router = replace(tempered.ROUTER, route=route)
    options = router.options(width=3, experts=2, tokens=4)
    return router.route(router.init(np.random.default_rng(0), options), np.ones((4, 3)), options)


def losses(*given, **more):
    return tempered.route(*given, **more)._replace(losses={"balance": np.ones(2)})


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            lambda: replace(tempered.ROUTER, Options=dict),
            "Options=<class 'dict'>: expected a subclass of RouterOptions",
        ),
        (
            lambda: replace(tempered.ROUTER, compose=lambda B: B),
            r"compose: .*\(B, params, tokens, options, noise, train\)",
        ),
        (lambda: replace(averaged.ROUTER, route=tempered.route), "route: .* unexpected keyword argument 'state'"),
        (lambda: replace(tempered.ROUTER, init=lambda: {}), r"init: expected a function of \(generator, options\)"),
        (lambda: replace(averaged.ROUTER, update=lambda state: 1), "update: expected a function of"),
        (lambda: routed(lambda *_, **__: None), "route: expected a RouterOutput, got NoneType"),
        (lambda: routed(losses), r"losses\['balance'\]: expected a scalar, got the shape \(2,\)"),
        (lambda: check_parameters(tempered.ROUTER, None), "init: expected NumPy arrays by name, got None"),
        (
            lambda: check_parameters(nearest.ROUTER, {"kernel": np.ones(1)}),
            r"'kernel': \(decays, frozen\) is \(False, False\)",
        ),
        (lambda: router_name("nowhere.at:all"), "nowhere.at is not imported; import it first"),
        (lambda: router_name("my_routers.tempered:Options"), "expected the name of a Router, got <class"),
        (lambda: router_name("__main__:GONE"), "it was defined in another notebook or script; put it into a module"),
        (lambda: router_name(replace(tempered.ROUTER)), "expected an object that a module has under a name"),
        (lambda: vit.named("vit_tiny", moe="1", experts=2, block={"1": {"router": "hasch"}}), "near it: hash"),
    ],
)
def test_what_is_wrong_is_one_line(wrong, said):
    with pytest.raises(ConfigError, match=said) as error:
        wrong()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "change", ["x.update(a=1)", "x.pop('hash')", "x.clear()", "x.setdefault('a', 1)", "x.__ior__({})"]
)
def test_the_table_does_not_change(change):
    with pytest.raises(TypeError, match=r"does not change; your own has the name 'package.module:object'"):
        eval(change, {"x": ROUTERS})
