"""Whether a target calls moespec itself for its results: the public functions of the specification and of our backends.

What it computes in another process, or in compiled code, is not seen. Conversions, gradients and compilation may be ours.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from inspect import unwrap
from traceback import walk_stack
from types import CodeType, FrameType
from typing import Any

from moespec.conformance import call
from moespec.conformance.functions import FUNCTIONS

__all__ = ["OURS", "watched"]

OURS = ("moespec.spec", "moespec.backends")
PACKAGES = ("moespec.spec", *(f"moespec.backends.{name}" for name in ("torch", "jax", "numpy")))


@cache
def _codes(packages: tuple[str, ...]) -> dict[CodeType, str]:
    """The code of each public function and router of packages that are loaded, with its path."""
    codes: dict[CodeType, str] = {}
    for package in packages:
        functions: dict[str, Any] = {name: getattr(sys.modules[package], name, None) for name in FUNCTIONS}
        functions |= {f"ROUTERS.{name}": router.route for name, router in functions["ROUTERS"].items()}
        for name, function in functions.items():
            plain = unwrap(function.func if isinstance(function, partial) else function)
            if hasattr(plain, "__code__"):
                codes.setdefault(plain.__code__, f"{package}.{name}")
    return codes


@contextmanager
def watched(called: set[str]) -> Iterator[None]:
    """Add to `called` the paths of what is called from outside of moespec, or by the suite as a function of the target."""
    codes = _codes(tuple(package for package in PACKAGES if package in sys.modules))

    def seen(frame: FrameType, event: str, _: object) -> None:
        if event != "call" or frame.f_code not in codes:
            return
        callers = [caller for caller, _ in walk_stack(frame.f_back)]
        modules = (str(caller.f_globals.get("__name__")) for caller in callers)
        by = next(module for module in modules if not module.startswith(OURS))
        steps = any(caller.f_code in codes for caller in callers)  # of one of ours
        if not steps and (by == call.__name__ or not by.startswith("moespec.")):
            called.add(codes[frame.f_code])

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        yield
    finally:
        sys.setprofile(before)
