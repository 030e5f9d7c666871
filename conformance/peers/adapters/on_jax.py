"""The JAX backend's functions that adapters for JAX packages share. The suite does not compare these functions."""

import importlib
from typing import Any

_backend: Any = importlib.import_module("moespec.backends.jax")
SlotRouting = _backend.SlotRouting
SHARED = ("cast", "from_numpy", "sum", "to_numpy", "value_and_grad", "with_dtype")


def shared(name: str) -> Any:
    """Return a function that a target needs and the adapter does not define. Adapters use `shared` as `__getattr__`."""
    if name not in SHARED:
        raise AttributeError(name)
    return getattr(_backend, name)
