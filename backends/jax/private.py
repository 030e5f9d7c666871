"""The private names of JAX that moespec uses, tested with JAX 0.10.1 and 0.12.0.1. No other module uses private names of JAX."""

from importlib import import_module
from typing import Any

import jax

from moespec.spec.errors import ConfigError


def reach_at(address: str) -> None:
    """On CPUs, makes gloo announce this IP address to the other processes. Call this function before using JAX."""
    try:
        bridge: Any = import_module("jax._src.xla_bridge")
        register, make = bridge.register_backend_factory, bridge.make_cpu_client
        gloo = bridge._jax.make_gloo_tcp_collectives
        state: Any = import_module("jax._src.distributed").global_state
    except (ImportError, AttributeError) as error:
        wanted = "install a supported version: pip install 'jax>=0.10,<0.13,!=0.10.2'"
        raise ConfigError(f"jax {jax.__version__} lacks an API that moespec needs ({error}); {wanted}") from None

    def client() -> Any:
        return make(gloo(distributed_client=state.client, hostname=address))

    register("cpu", client, priority=0, fail_quietly=False)
