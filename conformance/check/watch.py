"""Detect whether a target computes results by calling functions or routers of moespec's specification or backends.

Calls in other processes or in compiled code are not detected. Calls of moespec's conversions, gradients and compilation are allowed.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_stack
from types import FrameType

from moespec.conformance import call
from moespec.conformance.functions import FUNCTIONS
from moespec.spec import ROUTERS

__all__ = ["OURS", "watched"]

OURS = ("moespec.spec", "moespec.backends")
NAMES = {*FUNCTIONS, *ROUTERS}


def _ours(frame: FrameType) -> bool:
    """Whether a stack frame belongs to a public function of moespec."""
    return frame.f_code.co_name in NAMES and _module(frame).startswith(OURS)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


@contextmanager
def watched(called: set[str]) -> Iterator[None]:
    """Adds to `called` each function of moespec that third-party code calls, or that the suite calls through the target."""

    def seen(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and _ours(frame):
            callers = [caller for caller, _ in walk_stack(frame.f_back)]
            by = next(module for module in map(_module, callers) if not module.startswith(OURS))
            if (by == call.__name__ or not by.startswith("moespec.")) and not any(map(_ours, callers)):
                called.add(f"{'.'.join(_module(frame).split('.')[:2])}: {frame.f_code.co_name}")

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        yield
    finally:
        sys.setprofile(before)
