"""Checks of the sections of a configuration."""

from moespec.spec.errors import ConfigError

__all__ = ["at_least"]


def at_least(section: str, config: object, **lowest: int) -> None:
    """ConfigError naming the first field of a section that is below its lowest value, or NaN."""
    for name, low in lowest.items():
        value = getattr(config, name)
        if not value >= low:
            raise ConfigError(f"{section}.{name}={value!r}: expected at least {low}")
