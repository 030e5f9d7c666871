"""Random numbers as a function of the seed, the purpose and the position, so that a run can go on from any step.

These are the numbers that the host draws: the order and the augmentation of images, and tables. Nothing in training
keeps a random state that moves: the numbers of step `n` are drawn from a counter-based generator (Philox) with the key
`(seed, stream)` and the counter `(0, 0, 0, n)`. The random state of a checkpoint is therefore `(seed, step)`.
"""

import numpy as np

__all__ = ["AUGMENTATION", "MIXUP", "ORDER", "TABLES", "generator"]

ORDER, AUGMENTATION, MIXUP, TABLES = 0, 1, 2, 4
"""Streams. 3 was that of noise, which is drawn on the device now: see `moespec.models.draws`."""


def generator(seed: int, stream: int, position: int) -> np.random.Generator:
    """The generator for one purpose (`stream`) at one step or epoch (`position`)."""
    return np.random.Generator(np.random.Philox(key=[seed, stream], counter=[0, 0, 0, position]))
