"""The worked example of the specification: six tokens, three experts, and the noise of one training step."""

import numpy as np
from numpy.typing import NDArray

LOGITS: NDArray[np.float64] = np.array(
    [[1, 0, -1], [2, 0.5, 0], [0.25, 0.5, 0], [0.5, -0.5, 1], [3, 0, 1], [1, 2, -2]], dtype=np.float64
)
"""Logits of the worked example G1, `(tokens, experts)` = (6, 3)."""

NOISE: NDArray[np.float64] = np.array(
    [[0.3, -1, 0.5], [0, 1, 0.25], [-0.5, 0.5, 0], [1, 0, -1], [0, 0, 0], [-0.2, 0.4, 0.6]], dtype=np.float64
)
"""Example values of the standard normal noise for G1."""

TIED_SCORES: NDArray[np.float64] = np.array(
    [[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.25, 0.25, 0.5], [0.5, 0.25, 0.25], [0.25, 0.25, 0.5]]
)
"""Scores with many ties, `(tokens, experts)` = (5, 3)."""
