"""Random numbers as a function of the seed, the purpose and the position, so that a run can go on from any step.

Nothing in training keeps a random state that moves: the numbers of step `n` are drawn from a counter-based generator
(Philox) with the key `(seed, stream)` and the counter `(0, 0, 0, n)`. The random state of a checkpoint is therefore
`(seed, step)`.
"""

import numpy as np

__all__ = ["AUGMENTATION", "MIXUP", "NOISE", "ORDER", "TABLES", "generator"]

ORDER, AUGMENTATION, MIXUP, NOISE, TABLES = range(5)


def generator(seed: int, stream: int, position: int) -> np.random.Generator:
    """The generator for one purpose (`stream`) at one step or epoch (`position`)."""
    return np.random.Generator(np.random.Philox(key=[seed, stream], counter=[0, 0, 0, position]))
