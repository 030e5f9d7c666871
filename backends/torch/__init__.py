"""The torch backend: the public functions of the specification on tensors, batched over groups.

Every function runs op by op and under `torch.compile(fullgraph=True)`: shapes never depend on values, nothing is read
back from the device, iteration counts are fixed. Invalid shapes, dtypes and options raise the specification's errors;
values (NaN, infinity, an order that is not a permutation) are not checked. `moespec.backends.torch.nn` has modules.

Letters of shapes: G groups, T tokens, E experts, C capacity, K choices, D width; N images, S tokens of an image, and in
hash layers N hashes, V ids.
"""

import sys
from typing import TYPE_CHECKING, Any

from moespec.backends.face import install
from moespec.backends.torch import namespace

name = "torch"
APART = ("collectives", "kernels", "mesh", "nn", "split_experts", "spread")
__all__ = install(sys.modules[__name__], apart=APART, xp=namespace)

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...  # every public name of a module of this backend
