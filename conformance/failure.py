"""What came instead of results, as the comparison has it: an exception of a target, or why there was none to raise."""

import math
import traceback
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Failure", "MalformedError", "NotOfferedError", "trace"]

STATES = ("error", "not implemented", "inconclusive")


class NotOfferedError(Exception):
    """The target says that it does not do what it was called for."""


class MalformedError(Exception):
    """What a target returned is not a result: it is not an array, or not a routing."""


@dataclass(frozen=True)
class Failure:
    """What a process says of a call without results; nothing in it can make a case pass.

    classes: of an exception, the names of its class and of the bases; none where nothing was raised. trace: the lines of
    code that raised it. state: that of the outcome. returned: whether something was returned that is not a result.
    """

    message: str
    classes: tuple[str, ...] = ()
    trace: str = ""
    state: str = "error"
    returned: bool = False

    def __post_init__(self) -> None:
        if self.state not in STATES:
            raise ValueError(f"state={self.state!r}: expected one of {', '.join(STATES)}")

    @classmethod
    def of(cls, error: BaseException, *, declines: bool = False) -> "Failure":
        """That of an exception. Only targets that may decline a case do so with one."""
        if declines and isinstance(error, NotOfferedError):
            return cls(str(error), state="not implemented")
        classes = tuple(each.__name__ for each in type(error).__mro__)
        return cls(str(error), classes, trace(error), returned=isinstance(error, MalformedError))

    @property
    def text(self) -> str:
        """A line for the report: the class, if there is one, and the message."""
        return ": ".join([*self.classes[:1], self.message[:400]])

    @property
    def fraction(self) -> float:
        """What stands for the fraction of the tolerance that is used."""
        return math.inf if self.state == "error" else 0.0


PACKAGE = str(Path(__file__).parent)
FRAMEWORKS = ("torch", "jax", "jaxlib", "numpy")
FRAMES = 8
"""Calls of a trace that are shown, the innermost."""


def trace(error: BaseException) -> str:
    """The calls that led to an exception: the lines of a third party's code, without the suite's and the frameworks'."""
    while error.__cause__ is not None:
        error = error.__cause__
    calls = [call for call in traceback.extract_tb(error.__traceback__) if not call.filename.startswith(PACKAGE)]
    own = [call for call in calls if not set(Path(call.filename).parts) & set(FRAMEWORKS)]
    return "".join(traceback.format_list((own or calls)[-FRAMES:])).rstrip()
