"""The version of moespec that is running. Files record it, but no reader rejects a file because of it."""

from importlib import metadata

__all__ = ["UNKNOWN", "version"]

UNKNOWN = "unknown"


def version(package: str = "moespec") -> str:
    """The version of an installed package, or `UNKNOWN` for any other, such as an uninstalled source tree."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return UNKNOWN
