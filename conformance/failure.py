"""A failure replaces the results of a call and records the target's exception or the reason why the call has no results."""

import math
import traceback
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Failure", "MalformedError", "NotOfferedError", "trace"]

STATES = ("error", "not implemented", "inconclusive")


class NotOfferedError(Exception):
    """Raised if the target declines a call."""


class MalformedError(Exception):
    """Raised if a target returns an invalid result, such as an object that is neither an array nor a routing."""


@dataclass(frozen=True)
class Failure:
    """The answer of a target's process if a call has no results. No failure can make a case pass.

    classes: names of the exception's class and bases; empty without an exception. trace: the lines of code that raised
    the exception. state: the outcome's state. returned: whether the call returned an invalid result.
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
        """Converts an exception into a failure. The exception can decline a case only if `declines` is true."""
        if declines and isinstance(error, NotOfferedError):
            return cls(str(error), state="not implemented")
        classes = tuple(each.__name__ for each in type(error).__mro__)
        return cls(str(error), classes, trace(error), returned=isinstance(error, MalformedError))

    @property
    def text(self) -> str:
        """A line for the report with the exception's class, if any, and the message."""
        return ": ".join([*self.classes[:1], self.message[:400]])

    @property
    def fraction(self) -> float:
        """The number that the report shows as the fraction of the tolerance."""
        return math.inf if self.state == "error" else 0.0


PACKAGE = str(Path(__file__).parent)
FRAMEWORKS = ("torch", "jax", "jaxlib", "numpy")
FRAMES = 8
"""Number of innermost calls shown in a trace."""


def trace(error: BaseException) -> str:
    """Returns the lines of third-party code that led to an exception, without lines of the suite and the frameworks."""
    while error.__cause__ is not None:
        error = error.__cause__
    calls = [call for call in traceback.extract_tb(error.__traceback__) if not call.filename.startswith(PACKAGE)]
    own = [call for call in calls if not set(Path(call.filename).parts) & set(FRAMEWORKS)]
    return "".join(traceback.format_list((own or calls)[-FRAMES:])).rstrip()
