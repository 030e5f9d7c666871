"""What adapters of JAX packages share, taken from the JAX backend, which is loaded by name. None of it is compared."""

import importlib
from typing import Any

__all__ = ["SlotRouting", "cast", "from_numpy", "sum", "to_numpy", "value_and_grad", "with_dtype"]

_backend: Any = importlib.import_module("moespec.backends.jax")
cast, sum, with_dtype = _backend.cast, _backend.sum, _backend.with_dtype
from_numpy, to_numpy, value_and_grad = _backend.from_numpy, _backend.to_numpy, _backend.value_and_grad
SlotRouting = _backend.SlotRouting
