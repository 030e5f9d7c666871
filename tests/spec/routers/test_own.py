"""Routers of the user's own: each computes the same on NumPy, JAX and torch, and what is wrong with one is an error of one line."""

from dataclasses import replace

import numpy as np
import pytest
from my_routers import averaged, nearest, tempered

from moespec.backends import numpy as B
from moespec.backends.optimizer import initial_params
from moespec.backends.routers import composed
from moespec.spec import ROUTERS, ConfigError
from moespec.spec.routers import router_name


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

    def computed(B):
        router, given = B.ROUTERS[name], B.from_numpy(state)
        output = router.route(B.from_numpy(params), B.from_numpy(tokens), options, state=given or None)
        new = router.update(options, given, output.statistics) if state else {}
        return B.to_numpy([output.routing.dense().combine, output.losses, output.metrics, new])

    torch.testing.assert_close(computed(other), computed(B), rtol=1e-5, atol=1e-6, check_dtype=False)


def of_two_losses(*given, **more):
    return tempered.route(*given, **more)._replace(losses={"balance": np.ones(2)})


def used(**changes):
    router = replace(tempered.ROUTER, **changes)
    options = router.options(width=3, experts=2, tokens=4)
    return router.route(initial_params(router, np.random.default_rng(0), options), np.ones((4, 3)), options)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: used(Options=dict), "Options=<class 'dict'>: expected a subclass"),
        (lambda: used(compose=lambda B: B), "compose: expected a function that accepts 4 arguments, noise, "),
        (lambda: replace(averaged.ROUTER, route=tempered.route), "route: .* unexpected keyword argument 'state'"),
        (lambda: used(init=lambda: {}), "init: expected a function that accepts 2 arguments: too many"),
        (lambda: replace(averaged.ROUTER, update=lambda state: 1), "update: expected a function that accepts"),
        (lambda: used(route=lambda *_, **__: None), "route: expected a RouterOutput, got NoneType"),
        (lambda: used(route=of_two_losses), r"losses\['balance'\]: expected a scalar, got shape \(2,\)"),
        (lambda: used(init=lambda *_: None), "init: expected a dict of NumPy arrays, got None"),
        (lambda: used(frozen=("kernel",)), r"'kernel'.* has \(decays, frozen\)=\(True, True\), but another"),
        (lambda: router_name("nowhere.at:all"), "nowhere.at is not imported; import it first"),
        (lambda: router_name("my_routers.tempered:Options"), "expected the name of a Router, got <class"),
        (lambda: router_name("os:path"), "expected your own module, not one of Python's standard library"),
        (lambda: router_name("__main__:GONE"), "is defined in another notebook or script; move it into a module"),
        (lambda: router_name(replace(tempered.ROUTER)), "expected a module-level object, which runs can refer to by"),
        (lambda: composed(B)._bind("", replace(tempered.ROUTER, compose=None)), "has no compose, which JAX"),
        (lambda: composed(B)._bind("", replace(averaged.ROUTER, compose_update=None)), "has no compose_update, wh"),
    ],
)
def test_what_is_wrong_is_one_line(wrong, said):
    with pytest.raises(ConfigError, match=said) as error:
        wrong()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("change", ["x.update(a=1)", "x.pop('hash')", "x.clear()", "x.__ior__({})"])
def test_the_table_does_not_change(change):
    with pytest.raises(TypeError, match=r"this table is read-only; select a custom object by name"):
        eval(change, {"x": ROUTERS})
