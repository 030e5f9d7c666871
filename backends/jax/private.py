"""What is used of JAX that has no public name, tried with JAX 0.10.0, 0.10.1 and 0.12.0. No other module uses such names."""

from importlib import import_module
from typing import Any

import jax

from moespec.spec.errors import ConfigError

BRIDGE = "jax._src.xla_bridge"


def _named(module: str, name: str) -> Any:
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError):
        wanted = "install another: pip install 'jax>=0.10,<0.13,!=0.10.2'"
        raise ConfigError(f"jax {jax.__version__} has no {module}.{name}, which moespec uses; {wanted}") from None


def reach_at(address: str) -> None:
    """Has gloo tell the other processes this IP address of a CPU's process. To be called before JAX is used."""
    register, make = _named(BRIDGE, "register_backend_factory"), _named(BRIDGE, "make_cpu_client")
    collectives, state = _named(BRIDGE, "_jax"), _named("jax._src.distributed", "global_state")

    def client() -> Any:
        return make(collectives.make_gloo_tcp_collectives(distributed_client=state.client, hostname=address))

    register("cpu", client, priority=0, fail_quietly=False)
