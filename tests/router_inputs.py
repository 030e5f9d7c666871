"""What tests of all routers give them: the options that each has, and the noise that it asks for."""

import dataclasses

import numpy as np

from moespec import spec


def options(name, *, width, experts, tokens, **wanted):
    """The options of a router: of those wanted, the ones that it has. Where tokens choose experts they choose two."""
    router = spec.ROUTERS[name]
    known = {field.name for field in dataclasses.fields(router.Options)}
    chosen = {key: value for key, value in {"choices": 1 + (name != "hash"), **wanted}.items() if key in known}
    return router.options(width=width, experts=experts, tokens=tokens, **chosen)


def noise(rng, name, options, groups):
    """Draws of the router's noise for some groups, float32; None if it takes none."""
    wanted = spec.ROUTERS[name].noise(options)
    if wanted is None:
        return None
    shape = (groups, *wanted.shape)
    drawn = rng.standard_normal(shape) if wanted.interval is None else rng.uniform(*wanted.interval, shape)
    return drawn.astype(np.float32)


def perceptrons(draw, experts, width, hidden):
    """The parameters of experts, each of what `draw` makes of its shape."""
    shapes = {"w1": (width, hidden), "b1": (hidden,), "w2": (hidden, width), "b2": (width,)}
    return {name: draw(experts, *shape) for name, shape in shapes.items()}
