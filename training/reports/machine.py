"""What a run was computed with: versions, device, and the largest memory that was taken."""

import platform
import sys
from typing import Any

from moespec.version import version

__all__ = ["machine"]


def machine(backend: str) -> dict[str, str]:
    """Versions and device of this process, and its peak of memory: the host's, and the accelerator's where the framework counts it."""
    device, taken = {"torch": _torch, "jax": _jax}.get(backend, lambda: ("", None))()
    named = {"moespec": version(), "Python": platform.python_version(), backend: version(backend)}
    words = ", ".join(f"{name} {of}" for name, of in named.items())
    peaks = {"host": _host(), "accelerator": taken}
    memory = ", ".join(f"{size / 2**30:.2f} GiB ({where})" for where, size in peaks.items() if size)
    return {
        "versions": f"{words}; on {device or f'a CPU ({platform.machine()})'}",
        **({"peak memory of the process": memory} if memory else {}),
    }


def _host() -> int | None:
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _torch() -> tuple[str, int | None]:
    torch: Any = sys.modules["torch"]  # the backend has imported it
    if not torch.cuda.is_available():
        return "", None
    return torch.cuda.get_device_name(), torch.cuda.max_memory_allocated()


def _jax() -> tuple[str, int | None]:
    device: Any = sys.modules["jax"].local_devices()[0]
    name = "" if device.platform == "cpu" else device.device_kind
    return name, (device.memory_stats() or {}).get("peak_bytes_in_use")
