"""Every file that is read again x what can have happened to it: one line that names it, at once, and never a wait."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from moespec.models.files import signed
from moespec.spec.errors import SpecError
from moespec.training.data.datasets import load
from moespec.training.evaluation.zero_shot import read_prompts
from moespec.training.loop import checkpoint
from moespec.training.loop.evaluations import _labels
from moespec.training.loop.rundirectory import RunDirectory
from moespec.training.loop.runlog import RunLog, read_log
from moespec.training.loop.trackers import _known
from moespec.training.study import outcome

READERS: dict[str, Any] = {
    "config.toml": lambda file: RunDirectory(file.parent).config(),
    "classes.json": lambda file: RunDirectory(file.parent).classes(),
    "state.json": lambda file: checkpoint.read_record(file.parent),
    "metrics.jsonl": lambda file: [read_log(file.parent, "train"), RunLog(file.parent, 1)],
    "trackers.json": _known,
    "outcome.json": outcome.read,
    "labels.json": lambda file: _labels(file, load("digits")),
    "prompts.json": read_prompts,
}
DAMAGES: dict[str, Any] = {
    **{"empty": b"", "cut": b'{"a', "a list": b'[{"kind": 3}]\n', "not UTF-8": b'{"a\xff": 1}\n', "numbers": b'{"a": 3}\n'},
    **{"deep": b"[" * 10**5 + b"\n", "edited": signed({"step": 1}).replace(b": 1", b": 2"), "folder": os.mkdir},
    **{"pipe": getattr(os, "mkfifo", None), "device": lambda path: os.symlink("/dev/zero", path)},
    "huge": lambda path: [path.touch(), os.truncate(path, 2**42)],
}  # fmt: skip
HARMLESS = {"config.toml": ["empty"], "metrics.jsonl": ["empty", "cut"]}  # as of a process that was killed


@pytest.mark.skipif(os.name != "posix", reason="pipes and devices of POSIX")
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_named_at_once(tmp_path: Path, name: str, damage: str) -> None:
    file, make = tmp_path / name, DAMAGES[damage]
    file.write_bytes(make) if isinstance(make, bytes) else make(file)
    signal.alarm(60)  # ends the process: it waits
    if damage in HARMLESS.get(name, ()):
        READERS[name](file)
    elif name == "trackers.json":
        with pytest.warns(UserWarning, match=rf"{name}.*start new runs"):
            assert READERS[name](file) == {}
    else:
        with pytest.raises((SpecError, OSError), match=rf"^[^\n]*{name}[^\n]*$"):
            READERS[name](file)
    signal.alarm(0)
