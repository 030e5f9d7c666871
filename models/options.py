"""Options are dataclass fields: the type defines valid values, the string below the field is the help text, and `option` adds conditions.

The configuration, the command line, the help and the error messages all use these definitions.
"""

import ast
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any

from moespec.spec.options import TEXTS, RouterOptions

__all__ = ["MOE", "Only", "help_texts", "marks", "no_effect", "option"]


@dataclass(frozen=True)
class Only:
    """The condition for an option's effect: another option equals (one of) `value`, differs from (each) `unless` or, by default, is set."""

    name: str
    """another option of the same section, or of any section by its full name, such as training.loss"""
    value: object = None
    unless: object = None
    why: str = ""
    """the reason why there is no effect (default: the value of the other option)"""

    def reason(self, section: Any, config: Any, prefix: str) -> str:
        """Returns the reason why the section (or, if it lacks the other option, `config`) does not meet the condition, or "" if it does."""
        local = hasattr(section, self.name)
        found: Any = section if local else config
        for part in self.name.split("."):
            found = _value(found, part)
        if self.value is None and self.unless is None:
            met = bool(found)
        else:
            wanted = self.value if self.unless is None else self.unless
            met = (found in wanted if isinstance(wanted, tuple) else found == wanted) is (self.unless is None)
        return "" if met else self.why or f"{prefix * local}{self.name} is {found!r}"


MOE = Only("moe", unless="none")
"""The condition of options that have an effect only in models with MoE blocks."""


def _value(section: Any, name: str) -> Any:
    """Returns the value of a section's field, with None replaced by the section's default for this field."""
    value = getattr(section, name)
    return section.default_of(name) if value is None and hasattr(section, "default_of") else value


def option(
    default: Any = MISSING,
    *,
    factory: Callable[[], Any] | None = None,
    hash: bool | None = None,
    only: Only | Sequence[Only] = (),
    flags: Sequence[str] = (),
    positional: bool = False,
    single: bool = False,
    rare: bool = False,
) -> Any:
    """Declares a dataclass field as an option, with its default (or a factory) and the conditions under which it has an effect.

    On a command line, `flags` replace the name of the option, and a `positional` option has no flag. Each use of a `single`
    option's flag adds one value to the option. The help does not list `rare` options.
    """
    about = {
        "only": (only,) if isinstance(only, Only) else tuple(only),
        "flags": tuple(flags),
        "positional": positional,
        "single": single,
        "rare": rare,
    }
    made = {"default": default} if factory is None else {"default_factory": factory}
    return field(metadata=about, hash=hash, **made)


def marks(kind: Any, name: str) -> Any:
    """Returns the arguments of `option` for a field, by name; an empty dict if the field does not use `option`."""
    return next((each.metadata for each in fields(kind) if each.name == name), {})


def no_effect(config: Any, name: str) -> str:
    """Returns the reason why an option (dotted name) or its section has no effect, or "" if the option has an effect."""
    section, prefix = config, ""
    for part in name.split("."):
        conditions: tuple[Only, ...] = marks(type(section), part).get("only", ())
        for only in conditions:
            if reason := only.reason(section, config, prefix):
                return reason
        section, prefix = getattr(section, part, None), f"{prefix}{part}."
        if section is None:
            break
    return ""


@cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    """Returns the AST of each class in a module, by name. Calling `inspect.getsource` for each class would read the module repeatedly."""
    statements = ast.parse(inspect.getsource(sys.modules[module])).body
    return {statement.name: statement for statement in statements if isinstance(statement, ast.ClassDef)}


@cache
def help_texts(kind: type) -> dict[str, str]:
    """Returns the help text of each option, by name: the string below the field in the class or a base class, or a router option's text."""
    texts: dict[str, str] = dict(TEXTS) if issubclass(kind, RouterOptions) else {}
    for part in reversed(kind.__mro__[:-1]):
        body = _classes(part.__module__).get(part.__name__)
        for field_, text in zip(body.body, body.body[1:], strict=False) if body else ():
            if isinstance(field_, ast.AnnAssign) and isinstance(field_.target, ast.Name) and isinstance(text, ast.Expr):
                texts[field_.target.id] = " ".join(str(ast.literal_eval(text.value)).split())
    return texts
