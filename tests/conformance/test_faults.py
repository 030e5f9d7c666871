"""The negatives and gradients leave nothing out: what the specification checks is failed, what is smooth is derived."""

import ast
from collections import defaultdict
from pathlib import Path
from traceback import walk_tb

import pytest

from moespec import spec
from moespec.conformance.program import select
from moespec.conformance.programs import PROGRAMS
from moespec.conformance.reference import groups_of, run
from moespec.conformance.suite import load

CASES = load()
FOLDER = Path(spec.__file__).parent
ARRAYS = ("as_array", "as_scalar")
ERRORS = {"ContractError", "ShapeError", "DtypeError"}

# What no case can fail, since its stages make it themselves.
UNREACHABLE = {
    **dict.fromkeys(("routing.dispatch", "routing.combine"), "the routing comes from an allocation"),
    "routing": "the routing comes from an allocation",
    "experts": "the experts are MLPs",
    "params": "a case names every parameter",
}
# What has no gradient case by algorithm.
UNDERIVED = {
    "network": {"x", "y"},
    "token_ids": {"tokens", "patches", "codebook"},  # ids are integers
    "hash_tables": {"draws", "frequencies", "embeddings", "points", "centroids"},  # tables are made before training
    "hash": {"router/tables"},  # a constant: the experts' numbers
    "gshard": {"noise"},  # it only decides which second experts are kept
}
# Of these an axis more or less is no fault.
ANY_RANK = {"...", "... width", "... classes", "n"}


def checks():
    """`(file, line) -> (text, kinds of error)` of all checks and raises of the specification but those of `checks.py`."""
    found = {}
    for path in sorted(FOLDER.glob("*.py")):
        if path.name in ("checks.py", "errors.py", "registry.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            if not (isinstance(node, ast.Raise) or called.startswith(("check_", "as_"))):
                continue
            kinds = set()
            if called in ARRAYS:
                axes = node.args[2].value if len(node.args) > 2 and isinstance(node.args[2], ast.Constant) else ""
                kinds = ERRORS - ({"ShapeError"} if axes in ANY_RANK else set())
            found[path.name, range(node.lineno, node.end_lineno + 1)] = ast.unparse(node), kinds
    return found


def raised():
    """`(file, line) -> names of errors` that the negatives raise there, or in what is called from there."""
    found = defaultdict(set)
    for case in CASES:
        if case.expect is None:
            continue
        stage = PROGRAMS[case.algorithm][case.expect.stage]
        try:
            for group in groups_of(stage, select(case.inputs, stage.reads)):
                run(stage, case.config, group)
        except spec.SpecError as error:
            for frame, line in walk_tb(error.__traceback__):
                path = Path(frame.f_code.co_filename)
                if path.parent == FOLDER:
                    found[path.name, line].add(type(error).__name__)
    return found


def test_every_check_has_a_negative():
    found = raised()
    missing = []
    for (file, lines), (text, kinds) in checks().items():
        hit = set().union(*(found[file, line] for line in lines))
        if hit >= kinds and hit:
            continue
        if not any(f"'{name}'" in text or f"'{name}:" in text for name in UNREACHABLE):
            missing.append(f"{file}:{lines[0]} {text}: {sorted(kinds - hit)}")
    assert missing == []


@pytest.mark.parametrize("algorithm", [name for name in PROGRAMS if name not in ("capacity", "batch_priority", "vit")])
def test_every_input_has_a_gradient(algorithm):
    """An order is no number, a capacity has no input, and the transformer is trained."""
    cases = [case for case in CASES if case.algorithm == algorithm and case.kind != "negative"]
    inputs = {name for case in cases for name, tensor in case.inputs.items() if tensor.array.dtype.kind == "f"}
    derived = {name for case in cases if case.gradients for name in case.gradients.wrt}
    assert inputs - derived <= UNDERIVED.get(algorithm, set())
