"""Write result files, which contain the measurements, the machine, the package versions and the command of a benchmark."""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from moespec.models.files import write_atomically
from moespec.version import UNKNOWN, version

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("moespec", "numpy", "scipy", "jax", "jaxlib", "libtpu", "optax", "torch")


def parser(text: str | None, *, backends: bool = False, **defaults: Any) -> argparse.ArgumentParser:
    """Return an argument parser for a benchmark. text: the help text. backends: whether to add --backend. defaults: other options."""
    options = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    if backends:
        options.add_argument("--backend", choices=("jax", "torch"), required=True)
    for name, default in defaults.items():
        name = f"--{name.replace('_', '-')}"
        options.add_argument(name, type=type(default), default=default, help="default: %(default)s")
    return options


def write(name: str, figures: dict[str, Any], *, of_device: bool = True) -> Path:
    """Write `benchmarks/results/<name>-<device>.json` and return its path. `<device>` is the name of the GPU, or `cpu`.

    If an earlier run had the same command, machine and versions, the new file keeps the earlier `figures` as `before`.

    of_device: whether the measurements depend on the machine. If False, the file is `<name>.json`.
    """
    device = (_gpu() or "cpu").lower().replace(" ", "-")
    result = {
        "command": " ".join(["python", os.path.relpath(sys.argv[0]), *sys.argv[1:]]),
        "machine": {
            "gpu": _gpu(),
            "cpu": _cpu(),
            "cores": os.cpu_count(),
            "system": platform.system(),
            "python": platform.python_version(),
        },
        "versions": {name: number for name in PACKAGES if (number := version(name)) != UNKNOWN},
        "figures": figures,
    }
    path = RESULTS / (f"{name}-{device}.json" if of_device else f"{name}.json")
    before = _earlier(path)
    if all(before.get(key) == result[key] for key in ("command", "machine", "versions")):
        result["before"] = before["figures"]
    return save(path, result)


def save(path: Path, result: dict[str, Any]) -> Path:
    """Write a result to a JSON file and return the path of the file."""
    write_atomically(path, (json.dumps(result, indent=1) + "\n").encode())
    return path


@cache
def _earlier(path: Path) -> dict[str, Any]:
    """Return the content that a file had before this run first wrote to it, or {} if the file did not exist."""
    result: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return result


def _cpu() -> str:
    info = Path("/proc/cpuinfo").read_text().splitlines() if platform.system() == "Linux" else []
    names = [line.partition(": ")[2] for line in info if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _gpu() -> str | None:
    if not shutil.which("nvidia-smi"):
        return None
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    names = subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines()
    return names[0].strip() if names else None
