"""The devices that JAX has."""

import jax

from moespec.spec.errors import ConfigError


def devices() -> int:
    """The number of devices of all processes. Raises ConfigError where JAX cannot use what JAX_PLATFORMS asks for."""
    try:
        return int(jax.device_count())
    except (RuntimeError, AssertionError) as error:  # JAX says by the second that a platform has no device
        platforms = getattr(jax.config, "jax_platforms", None)
        said = str(error).partition(". (set JAX_PLATFORMS")[0] or "no device of this platform, or no plugin for it"
        raise ConfigError(f"JAX_PLATFORMS={platforms!r}: {said}; expected cpu, or nothing for what there is") from error
