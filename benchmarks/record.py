"""One result file: the figures of one run with the machine, the versions and the command that made them."""

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


HELP = {
    "model": "a ViT",
    "image_size": "pixels",
    "images": "images of the batch",
    "groups": "groups of tokens",
    "tokens": "tokens of a group",
    "width": "width of a token",
    "hidden": "hidden width of an expert",
    "experts": "experts of a layer",
    "rounds": "timed rounds",
    "topology": "name of the TPU topology",
}


def parser(text: str | None, *, backends: bool = False, vmoe: bool = False, **defaults: Any) -> argparse.ArgumentParser:
    """The parser of a benchmark with this docstring. backends, vmoe: whether it has these options. defaults: of options in `HELP`."""
    options = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    if backends:
        options.add_argument("--backend", choices=("jax", "torch"), required=True)
    for name, default in defaults.items():
        words = {"type": type(default), "default": default, "help": f"{HELP[name]} (default: %(default)s)"}
        options.add_argument(f"--{name.replace('_', '-')}", **words)
    if vmoe:
        options.add_argument("--vmoe", nargs="+", default=[], metavar="FOLDER", help="checkouts of vmoe and its ViT")
    return options


def import_from(folders: list[str]) -> None:
    """Import from these folders, too, which the recorded command does not name."""
    sys.path += folders
    sys.argv = ["FOLDER" if argument in folders else argument for argument in sys.argv]


def device_slug() -> str:
    """A short name of the machine for file names: the GPU's name, else `cpu`."""
    gpu = _gpu()
    return gpu.lower().replace(" ", "-") if gpu else "cpu"


def write(name: str, figures: dict[str, Any], *, of_device: bool = True) -> Path:
    """Write `benchmarks/results/<name>-<device>.json` through a temporary file and return its path.

    The figures that it had of the same command, machine and versions are kept as `before`: a second run beside the first.

    of_device: False for figures that are the same on every machine, whose file is `<name>.json`.
    """
    result = {
        "command": _command(),
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
    path = RESULTS / (f"{name}-{device_slug()}.json" if of_device else f"{name}.json")
    before = _earlier(path)
    if all(before.get(key) == result[key] for key in ("command", "machine", "versions")):
        result["before"] = before["figures"]
    return _written(path, result)


def add(name: str, part: str, rows: dict[str, dict[str, Any]]) -> Path:
    """Add rows of another run to a part of the figures of a result, each with its command, and return the path of its file."""
    path = RESULTS / f"{name}-{device_slug()}.json"
    result = json.loads(path.read_text())
    result["figures"][part] |= {key: {**row, "command": _command()} for key, row in rows.items()}
    return _written(path, result)


def _command() -> str:
    return " ".join(["python", os.path.relpath(sys.argv[0]), *sys.argv[1:]])


def _written(path: Path, result: dict[str, Any]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    write_atomically(path, (json.dumps(result, indent=1) + "\n").encode())
    return path


@cache
def _earlier(path: Path) -> dict[str, Any]:
    """What a file had before this run first wrote it; nothing of one that is not there."""
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
