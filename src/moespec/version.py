"""Which version of moespec runs. Files that are written name it; nothing compares it to refuse what can be read."""

from importlib import metadata

__all__ = ["UNKNOWN", "version"]

UNKNOWN = "unknown"


def version(package: str = "moespec") -> str:
    """The version of an installed package; `UNKNOWN` of another, as a source tree is that is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return UNKNOWN
