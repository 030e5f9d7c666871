"""JAX compiles small programs that run once: what XLA would optimise takes more time than it saves."""

import os
from importlib.metadata import PackageNotFoundError, version

try:
    older = tuple(map(int, version("jax").split(".")[:2])) < (0, 11)
except PackageNotFoundError:
    older = False
# From JAX 0.11 on, XLA does not know the second flag and aborts.
FLAGS = ("--xla_backend_optimization_level=0", *(("--xla_cpu_use_fusion_emitters=false",) if older else ()))
os.environ.setdefault("XLA_FLAGS", " ".join(FLAGS))
