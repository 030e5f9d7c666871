"""A page's source code in the specification and the backends, read without importing them."""

import ast
import inspect
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from generator.catalogue import ROOT, Page
from moespec.models.options import help_texts

TABS = {
    "spec": "Specification (NumPy)",
    "backends/common": "JAX and torch",
    "backends/jax": "JAX",
    "backends/torch": "torch",
}
"""The name of the tab for each source folder."""


class Text(NamedTuple):
    """A function's file, signature and source without the docstring."""

    path: Path
    signature: str
    text: str


class Option(NamedTuple):
    """A field of a router's options: name, type as written, default and meaning."""

    name: str
    kind: str
    default: str
    meaning: str


@cache
def _definitions(folder: str) -> dict[str, Text]:
    """The public top-level functions, by name, of the modules in a folder and in its subfolder `algorithms`."""
    definitions: dict[str, Text] = {}
    for path in sorted([*(ROOT / folder).glob("*.py"), *(ROOT / folder / "algorithms").glob("*.py")]):
        source = path.read_text(encoding="utf-8")
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                definitions[node.name] = _text(path, source.splitlines(), node)
    return definitions


def _text(path: Path, lines: list[str], node: ast.FunctionDef) -> Text:
    first = min((each.lineno for each in node.decorator_list), default=node.lineno)
    body = node.body[1:] if ast.get_docstring(node) is not None and len(node.body) > 1 else node.body
    after = node.body[0].end_lineno if body is not node.body else body[0].lineno - 1
    text = [*lines[first - 1 : node.body[0].lineno - 1], *lines[after or 0 : node.end_lineno]]
    return Text(path.relative_to(ROOT), head(lines, node).removesuffix(":"), "\n".join(text))


def head(lines: list[str], node: Any) -> str:
    """The lines of a function or class before its body, without decorators."""
    first = lines[node.lineno - 1 : node.body[0].lineno - 1] or lines[node.lineno - 1 : node.lineno]
    return "\n".join(first)


def signature(name: str) -> str:
    """The signature of a public function of the specification, as written."""
    return _definitions("spec")[name].signature


def sources(page: Page, calls: list[str]) -> dict[str, list[tuple[Path, str]]]:
    """For each tab, the source texts with their files.

    The specification's tab begins with the router's file. The backends' tabs add the functions that the router's steps call.
    """
    by_name: dict[str, list[tuple[Path, str]]] = {}
    for folder, name in TABS.items():
        wanted = list(dict.fromkeys([*(calls if folder != "spec" else ()), *page.functions]))
        known = _definitions(folder)
        by_name[name] = [(known[each].path, known[each].text) for each in wanted if each in known]
        if page.router and folder == "spec":
            path = Path("spec/routers") / f"{page.name}.py"
            text = (ROOT / path).read_text(encoding="utf-8")  # the page shows the docstring elsewhere
            by_name[name].insert(0, (path, "\n".join(text.splitlines()[ast.parse(text).body[1].lineno - 1 :])))
    return {name: texts for name, texts in by_name.items() if texts}


def options(page: Page) -> list[Option]:
    """A router's options in order of definition."""
    if page.router is None:
        return []
    kind: Any = page.router.Options  # mypy considers a dataclass type unhashable
    written: dict[str, str] = {}
    for part in reversed(kind.__mro__[:-1]):
        body = ast.parse(inspect.getsource(part)).body[0].body  # type: ignore[attr-defined]
        annotated = (node for node in body if isinstance(node, ast.AnnAssign))
        written |= {ast.unparse(node.target): ast.unparse(node.annotation) for node in annotated}
    defaults = {field.name: "" if field.default is MISSING else repr(field.default) for field in fields(kind)}
    texts = help_texts(kind)
    return [Option(name, written[name], default, texts[name]) for name, default in defaults.items()]
