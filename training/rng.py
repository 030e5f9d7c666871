"""Draws random numbers as a function of the seed, the purpose and the position, so that a run can resume from any step.

The host draws these numbers for the order and the augmentation of images and for the tables of hash layers. Training keeps no evolving
random state: the numbers of step `n` come from a counter-based generator (Philox) with the key `(seed, stream)` and the counter `(0, 0,
part, n)`, in which `part` is usually 0. The random state of a checkpoint is therefore `(seed, step)`.
"""

import numpy as np

__all__ = ["AUGMENTATION", "CUTMIX", "MIXUP", "ORDER", "PICTURE", "TABLES", "generator"]

ORDER, AUGMENTATION, MIXUP, TABLES = 0, 1, 2, 4
"""Stream numbers. Number 3 was used for noise, which is now drawn on the device: see `moespec.models.random_keys`."""
PICTURE, CUTMIX = 16, 17
"""Stream numbers of the augmentation of a single image, and of cutmix."""


def generator(seed: int, stream: int, position: int, part: int = 0) -> np.random.Generator:
    """Returns the generator of the purpose `stream` for the step, epoch or image `position`. part: the `part` of the counter."""
    return np.random.Generator(np.random.Philox(key=[seed, stream], counter=[0, 0, part, position]))
