"""Lints of the specification's source: safe for the complex step, small functions, small modules.

On complex numbers some functions are silently wrong (they take a modulus, conjugate, or order lexicographically) and
some fail. Both are kept out of `moespec.spec`, where decisions are made on `.real` and everything else is analytic.
"""

import ast
from pathlib import Path

import pytest

from moespec import spec

FOLDER = Path(spec.__file__).parent
FILES = sorted(FOLDER.rglob("*.py"))
NUMERIC = [path for path in FILES if not path.is_relative_to(FOLDER / "implementations")]  # which read text

# Wrong or failing on complex input, whatever the receiver.
BANNED = {
    "abs", "absolute", "angle", "argpartition", "cbrt", "clip", "conj", "conjugate", "expit", "fabs", "fmax", "fmin",
    "heaviside", "hypot", "linalg", "log_expit", "log_ndtr", "logaddexp", "logaddexp2", "logit", "maximum", "median",
    "minimum", "nan_to_num", "nanmax", "nanmin", "nanstd", "nanvar", "ndtr", "norm", "partition", "percentile", "ptp",
    "quantile", "sign", "std", "var", "vdot", "xlogy",
}  # fmt: skip
# They order their operand, so it has to be a real part.
ORDERING = {"amax", "amin", "argmax", "argmin", "argsort", "ceil", "floor", "lexsort", "max", "min", "round", "sort"}
NUMPY = {"np", "numpy"}


def is_real(node: ast.AST) -> bool:
    """`x.real` or `-x.real`."""
    if isinstance(node, ast.UnaryOp):
        return is_real(node.operand)
    return isinstance(node, ast.Attribute) and node.attr == "real"


def unsafe(source: str) -> list[str]:
    """What in `source` is not safe for the complex step, as `line: name`."""
    places = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            places += [(node.lineno, alias.name) for alias in node.names if alias.name in BANNED]
            if (node.module or "").startswith(("numpy", "scipy.special")):
                places += [(node.lineno, alias.name) for alias in node.names if alias.name in ORDERING]
        elif isinstance(node, ast.Attribute) and node.attr in BANNED:
            places.append((node.lineno, node.attr))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "abs":
            places.append((node.lineno, "abs"))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ORDERING:
            receiver = node.func.value
            if isinstance(receiver, ast.Name) and receiver.id == "math":
                continue  # plain numbers
            is_function = isinstance(receiver, ast.Name) and receiver.id in NUMPY
            operand = node.args[0] if is_function and node.args else receiver
            if not is_real(operand):
                places.append((node.lineno, node.func.attr))
    return [f"{line}: {name}" for line, name in sorted(places)]


@pytest.mark.parametrize("path", NUMERIC, ids=lambda path: str(path.relative_to(FOLDER).with_suffix("")))
def test_safe_for_the_complex_step(path):
    assert unsafe(path.read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        *("np.abs(x)", "numpy.absolute(x)", "abs(x)", "np.sign(x)", "np.var(x)", "x.std()", "np.linalg.norm(x)"),
        *("from numpy.linalg import norm", "np.vdot(x, y)", "x.conj()", "from scipy.special import expit"),
        *("scipy.special.log_ndtr(x)", "np.logaddexp(x, 0)", "np.maximum(x, 0)", "np.max(x)", "x.max(axis=1)"),
        *("np.argsort(-x, kind='stable')", "x.argmax()", "np.sort(x.imag)", "np.argpartition(x.real, 2)"),
        *("np.clip(x, 0, 1)", "from numpy import sort"),
    ],
)
def test_the_lint_finds(line):
    assert unsafe(f"import numpy as np\n{line}\n")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FOLDER).with_suffix("")))
def test_modules_and_functions_are_small(path):
    source = path.read_text()
    tree = ast.parse(source)
    above = tree.body[0].end_lineno if path.parent.name == "routers" else 0  # the ledger of a router
    assert len(source.splitlines()) - above <= 200 or path == FOLDER / "__init__.py"  # the list of names
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            most = 50 if node.name == "route" else 40  # a router is one straight line of steps
            body = node.body[ast.get_docstring(node) is not None :]  # blank lines and comments do count
            assert not body or body[-1].end_lineno - body[0].lineno + 1 < most, f"{path.name}: {node.name}"
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            assert ast.get_docstring(node) or node.name.startswith("_"), f"{path.name}: {node.name}"
