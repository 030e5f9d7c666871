"""The JAX backend: pure functions on arrays with a leading groups axis, for `jax.jit` on CPU, GPU and TPU.

Sparse routings are stored by slot (`SlotRouting`); nothing of size tokens x experts x capacity is made unless
`.dense()` is called, except for soft routing, which is dense by nature. Affinities, losses and routing weights are
in float32 or better whatever the dtype of the model. Invalid shapes, dtypes and options raise while tracing;
NaN and infinity are not looked for. Results are the same bits on every run of the same program. Outside of `jax.jit` each
function is a program of its own for each set of shapes, dtypes and options (`moespec.backends.jax.programs`).
"""

import sys
from typing import TYPE_CHECKING, Any

from moespec.backends.face import install
from moespec.backends.jax import namespace
from moespec.backends.jax.programs import program

name = "jax"
__all__ = install(sys.modules[__name__], apart=("mesh", "modules", "nnx", "equinox"), program=program, xp=namespace)

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...  # every public name of a module of this backend
