"""The specification as a backend: float64 NumPy, one group after another, with exact gradients by the complex step.

It computes what the compiled backends must compute, at a speed for tests. The routers are the specification's own, not
the composition that the compiled backends share.
"""

import sys
from typing import TYPE_CHECKING, Any

from moespec.backends.face import install
from moespec.backends.numpy.groups import batched

name = "numpy"
not_offered = {"*/large_gradient": "a complex step for each of its parameters takes hours"}
__all__ = install(sys.modules[__name__], derive=batched)

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...  # every public name of a module of this backend
