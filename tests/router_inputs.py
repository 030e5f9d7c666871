"""What tests of all routers give them: as many choices as they take, and the noise that they ask for."""

import numpy as np

from moespec import spec


def choices(name):
    """Two, but for the routers that give a token one expert."""
    return 1 if name in ("switch", "s_base") else 2


def noise(rng, name, config, groups):
    """Draws of the router's noise for some groups, float32; None if it takes none."""
    wanted = spec.ROUTERS[name].noise(config)
    if wanted is None:
        return None
    shape = (groups, *wanted.shape)
    drawn = rng.standard_normal(shape) if wanted.interval is None else rng.uniform(*wanted.interval, shape)
    return drawn.astype(np.float32)
