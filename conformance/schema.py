"""Whether JSON that others may have written is as its schema says, or one line about the first thing that is otherwise."""

import json
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["check"]

LONGEST = 80
"""Characters of a value in a message."""


def check(content: Any, schema: str) -> None:
    """Raise ValueError unless the content has the form of `schema.json`, or of `report_schema.json`.

    The message names the place and is short, whatever stands there.
    """
    try:
        from jsonschema.exceptions import best_match
    except ImportError as error:
        raise ValueError("jsonschema checks its form. Install it: pip install 'moespec[conformance]'") from error
    worst = best_match(_validator(schema).iter_errors(content))
    if worst is not None:
        value = repr(worst.instance)
        message = worst.message.replace(value, value if len(value) <= LONGEST else f"{value[:LONGEST]}…")
        raise ValueError(f"{worst.json_path[-LONGEST:]}: {message[: 3 * LONGEST]}")


@cache
def _validator(schema: str) -> Any:
    """A validator for which an integer is written as one: neither `true` nor 1.0."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    types = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    content = json.loads(Path(__file__).with_name(schema).read_text())
    return extend(Draft202012Validator, type_checker=types)(content)
