"""Computing in a lower precision than is promised: the variants that functions, routers and models share.

The known variants run in float64, where any result in bfloat16 is far outside its tolerance; the cases with the flag
`low_precision` see these mistakes in float32 and in bfloat16, too.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from moespec.conformance.author.draw import to_bfloat16
from moespec.conformance.author.variant import variant

__all__ = ["VARIANTS"]


def _bfloat16(values: Any) -> Any:
    """Rounded to bfloat16, with the derivative of the identity."""
    return values + (to_bfloat16(values.real).astype(np.float64) - values.real)


def combine_weights_in_bfloat16(B: Any, tokens: Any, routing: Any, experts: Callable[[Any], Any]) -> Any:
    """The combine weights are rounded to bfloat16 before they multiply what the experts return."""
    part = "weight" if hasattr(routing, "weight") else "combine"
    return B.moe_layer(tokens, routing._replace(**{part: _bfloat16(getattr(routing, part))}), experts)


VARIANTS = (variant(combine_weights_in_bfloat16, "moe_layer", who="huggingface/transformers"),)
