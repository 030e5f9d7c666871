"""JAX compiles small programs that run once: what XLA would optimise takes more time than it saves."""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false")
