"""The version of moespec that is running. Files record this version, but no reader rejects a file because of its version."""

from importlib import metadata

__all__ = ["UNKNOWN", "version"]

UNKNOWN = "unknown"


def version(package: str = "moespec") -> str:
    """Returns the version of an installed package, or `UNKNOWN` for a package that is not installed, such as a source tree."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return UNKNOWN
