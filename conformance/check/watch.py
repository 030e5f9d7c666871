"""Whether a target calls moespec itself for its results: functions and routers of the specification, or of our backends.

What it computes in another process, or in compiled code, is not seen. Conversions, gradients and compilation may be ours.
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
    """Whether it is of a public function."""
    return frame.f_code.co_name in NAMES and _module(frame).startswith(OURS)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


@contextmanager
def watched(called: set[str]) -> Iterator[None]:
    """Add to `called` what is called from outside of moespec, or by the suite as a function of the target."""

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
