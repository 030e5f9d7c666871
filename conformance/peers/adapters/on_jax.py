"""Functions shared by adapters of JAX packages, from the JAX backend, which is loaded by name. None is compared."""

import importlib
from typing import Any

_backend: Any = importlib.import_module("moespec.backends.jax")
SlotRouting = _backend.SlotRouting
SHARED = ("cast", "from_numpy", "sum", "to_numpy", "value_and_grad", "with_dtype")


def shared(name: str) -> Any:
    """The `__getattr__` of an adapter: functions that a target needs and the adapter does not define."""
    if name not in SHARED:
        raise AttributeError(name)
    return getattr(_backend, name)
