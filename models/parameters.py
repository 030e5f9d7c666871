"""Describes the parameters of a model by a layout: a nested dict in which each leaf defines the shape and initial values of one parameter.

The layout determines all shapes, counts and initial arrays. A linear layer has a `kernel` (inputs first)
and a `bias`; an MLP has `w1, b1, w2, b2`; experts have the parameters of an MLP, stacked along a leading axis E.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moespec.backends.optimizer import STATE, initial_params, is_fixed
from moespec.spec import initial as draws
from moespec.spec.errors import ConfigError
from moespec.spec.options import RouterOptions
from moespec.spec.routers import ROUTERS
from moespec.spec.routing import Params

Shape = tuple[int, ...]
Draw = Callable[[np.random.Generator, Shape], NDArray[Any]]


class Parameter(NamedTuple):
    """One parameter: its shape, and a function that draws its initial values."""

    shape: Shape
    draw: Draw


def shapes(layout: Params) -> Params:
    """Returns the layout with each parameter replaced by its shape."""
    return _map(layout, lambda path, parameter: parameter.shape)


def shaped(shapes: Params) -> Params:
    """Replaces each shape in a nested dict with a `Shaped`, which has the attribute `shape`."""
    return _map(shapes, lambda path, shape: Shaped(tuple(shape)))


class Shaped(NamedTuple):
    """A leaf that stands in for an array and has only a shape."""

    shape: Shape


def paths(shapes: Params) -> list[tuple[str, ...]]:
    """Returns the path of each parameter in a nested dict of shapes, as a tuple of keys."""
    result: list[tuple[str, ...]] = []
    _map(shapes, lambda path, shape: result.append(path))
    return result


def count(layout: Params) -> int:
    """Returns the number of trained parameters, without constants."""
    counts: list[int] = []
    _map(layout, lambda path, p: counts.append(0 if is_fixed(path) else math.prod(p.shape)))
    return sum(counts)


def initial(layout: Params, seed: int, *, lazily: bool = False) -> Params:
    """Returns the initial parameters, a nested dict of NumPy float32 arrays.

    Each parameter has a separate random stream, derived from the seed and the parameter's name, so adding a block does
    not change other parameters. lazily: whether to return `Drawn` instead of arrays. Raises ConfigError for a negative seed.
    """
    if seed < 0:
        raise ConfigError(f"seed={seed!r}: expected an integer >= 0")

    def fill(path: tuple[str, ...], parameter: Parameter) -> Any:
        drawn = Drawn(path, parameter, seed)
        return drawn if lazily else drawn.values

    return _map(layout, fill)


class Drawn:
    """The initial values of a parameter, drawn when a slice is first read and cached until another parameter is drawn."""

    dtype = np.dtype(np.float32)

    def __init__(self, path: tuple[str, ...], parameter: Parameter, seed: int) -> None:
        self._path, self._parameter, self._seed = path, parameter, seed
        self.shape = parameter.shape

    @property
    def values(self) -> NDArray[np.float32]:
        """All initial values."""
        generator = np.random.default_rng([self._seed, *"/".join(self._path).encode()])
        return np.asarray(self._parameter.draw(generator, self.shape), np.float32)

    def __getitem__(self, index: tuple[slice, ...]) -> NDArray[np.float32]:
        return _last_drawn(self)[index]


@functools.lru_cache(maxsize=1)
def _last_drawn(parameter: Drawn) -> NDArray[np.float32]:
    return parameter.values


def _map(tree: Params, function: Callable[[tuple[str, ...], Any], Any], path: tuple[str, ...] = ()) -> Params:
    """Applies `function(path, leaf)` to every leaf of a nested dict."""
    return {
        key: _map(value, function, (*path, key)) if isinstance(value, dict) else function((*path, key), value)
        for key, value in tree.items()
    }


def constant(value: float) -> Draw:
    """Initialises every entry to `value`."""
    return lambda generator, shape: np.full(shape, value, np.float32)


def normal(std: float) -> Draw:
    """Draws from a normal distribution with mean 0 and standard deviation `std`."""
    return lambda generator, shape: np.float32(std) * generator.standard_normal(shape, np.float32)


def glorot_uniform(inputs: int, outputs: int) -> Draw:
    """Draws from a uniform distribution with mean 0 and variance `2 / (inputs + outputs)`."""
    limit = np.float32(math.sqrt(6 / (inputs + outputs)))
    return lambda generator, shape: limit * (2 * generator.random(shape, np.float32) - 1)


def lecun_normal(inputs: int) -> Draw:
    """Draws from a normal distribution with variance `1 / inputs`, truncated at two standard deviations."""
    return lambda generator, shape: draws.lecun_normal(generator, shape, inputs)


def _stacked(draw: Draw, expert_init: str) -> Draw:
    """Draws the values of all experts. If `expert_init` is "shared", draws the values of one expert and copies them."""
    if expert_init == "independent":
        return draw
    return lambda generator, shape: np.broadcast_to(draw(generator, shape[1:]), shape).copy()


def norm(dim: int) -> Params:
    """Layer normalisation."""
    return {"scale": Parameter((dim,), constant(1.0)), "bias": Parameter((dim,), constant(0.0))}


def embedding(patch: int, channels: int, width: int) -> Params:
    """Returns the layout of the linear patch embedding, whose initial kernel is LeCun normal."""
    return {
        "kernel": Parameter((patch, patch, channels, width), lecun_normal(patch * patch * channels)),
        "bias": Parameter((width,), constant(0.0)),
    }


def head(width: int, classes: int, bias: float) -> Params:
    """Returns the layout of the head, whose initial kernel is 0 and whose initial bias is `bias`."""
    return {"kernel": Parameter((width, classes), constant(0.0)), "bias": Parameter((classes,), constant(bias))}


def mlp(
    width: int, hidden: int, kernel: Callable[[int, int], Draw], bias: Draw, *, gated: bool = False, biased: bool = True
) -> Params:
    """Returns the layout of an MLP `width -> hidden -> width`. A gated MLP also has `w3`, with the shape of `w1`. kernel: maps
    the numbers of inputs and outputs to the initialiser of a kernel."""
    sizes = {"1": (width, hidden), "2": (hidden, width), **({"3": (width, hidden)} if gated else {})}
    layout: Params = {}
    for number, shape in sizes.items():
        layout[f"w{number}"] = Parameter(shape, kernel(*shape))
        layout |= {f"b{number}": Parameter(shape[1:], bias)} if biased else {}
    return layout


def latent(width: int, latent: int, *, norm: bool) -> Params:
    """Returns the layout of the projections around latent experts."""
    layout: Params = {"down": Parameter((width, latent), glorot_uniform(width, latent))}
    layout |= {"norm": Parameter((latent,), constant(1.0))} if norm else {}
    return {**layout, "up": Parameter((latent, width), glorot_uniform(latent, width))}


def constants(experts: int, width: int) -> Params:
    """Returns the layout of constant experts. Their vectors start as standard normal numbers, as in MoE++."""
    return {
        "value": Parameter((experts, width), normal(1.0)),
        "mix": Parameter((experts, width, 2), glorot_uniform(width, 2)),
    }


def moe(router: str, settings: RouterOptions, dense: Params, expert_init: str, mlps: int = 0) -> Params:
    """Returns the layout of an MoE layer: the parameters and state of the router, and copies of the MLP `dense`. mlps: the number of
    copies; 0 for `settings.experts`."""
    route = ROUTERS[router]
    # Draw the router's parameters, since only the router knows their names. Unlike drawing experts, this is cheap.
    params = initial_params(route, np.random.default_rng(0), settings)
    names = {name: np.shape(value) for name, value in params.items()}

    def draw(name: str) -> Draw:
        return lambda generator, shape: route.init(generator, settings)[name]

    state = {name: Parameter(kept.shape, constant(kept.value)) for name, kept in route.state(settings).items()}
    return {
        "router": {
            **{name: Parameter(shape, draw(name)) for name, shape in names.items()},
            **({STATE: state} if state else {}),
        },
        "experts": {
            name: Parameter((mlps or settings.experts, *one.shape), _stacked(one.draw, expert_init))
            for name, one in dense.items()
        },
    }
