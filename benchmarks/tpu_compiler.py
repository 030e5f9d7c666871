"""The TPU's compiler where there is no TPU: to be imported before JAX, which reads these variables then."""

import os

for variable, value in {
    "JAX_PLATFORMS": "cpu",  # the compiler is requested by name
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_OPTIMIZATION_LEVEL": "O0",
}.items():
    os.environ.setdefault(variable, value)
