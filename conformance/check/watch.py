"""Whether a target calls moespec itself for its results: the public functions of the specification and of our backends.

One call of each function of each row is watched, op by op. What the target computes in another process, or through compiled
code, is not seen. Conversions, gradients and compilation may come from a backend, and are not looked at.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from inspect import unwrap
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
        module = sys.modules[package]
        functions: dict[str, Any] = {name: getattr(module, name, None) for name in FUNCTIONS}
        functions |= {f"ROUTERS.{name}": router.route for name, router in module.ROUTERS.items()}
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
        callers, caller = [], frame.f_back
        while caller is not None:
            callers.append(caller)
            caller = caller.f_back
        if not any(each.f_code in codes for each in callers):  # else it is a step of one of ours
            modules = (str(each.f_globals.get("__name__", "")) for each in callers)
            by = next((module for module in modules if not module.startswith(OURS)), "")
            if not by.startswith("moespec.") or by == call.__name__:
                called.add(codes[frame.f_code])

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        yield
    finally:
        sys.setprofile(before)
