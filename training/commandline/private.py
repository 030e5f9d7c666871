"""What is used of tyro that has no public name, tried with tyro 1.0.17. No other module uses such names."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tyro


def on_parse_error(told: Callable[[Any], None]) -> AbstractContextManager[Any]:
    """In which `told` gets what tyro finds wrong. Where tyro has no such hook it prints its own words, and ends with status 2."""
    hook: Callable[..., AbstractContextManager[Any]]
    hook = getattr(getattr(tyro, "_errors", None), "on_parse_error", nullcontext)
    return hook(told)
