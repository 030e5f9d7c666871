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

# What no case can fail: the argument, and why.
UNREACHABLE = {
    **dict.fromkeys(("routing.dispatch", "routing.combine"), "the routing comes from an allocation"),
    "routing": "the routing comes from an allocation",
    "experts": "the experts are MLPs",
    "params": "a case names every parameter",
}
# Errors that are no fault at a check, and why.
EARLIER = {
    "as_array(name, value, AXES[name])": ({"ShapeError", "DtypeError"}, "check_rescale has raised them"),
    "check_scores('selectors', ": (set(), "backends ask it, to count the groups of the selectors"),
}
# What has no gradient case by algorithm.
UNDERIVED = {
    "network": {"x", "y"},
    "token_ids": {"tokens", "patches", "codebook"},  # ids are integers
    "hash_tables": {"draws", "frequencies", "embeddings", "points", "centroids"},  # tables are made before training
    "hash": {"router/tables"},  # a constant: the experts' numbers
    "gshard": {"noise"},  # it only decides which second experts are kept
}
WITHOUT_GRADIENT = {"capacity", "batch_priority"}
"""A capacity has no input, and an order is no number."""
MODELS = {"vit", "mixer", "sparse_mlp"}
"""The transformer is trained; of the others a small model is derived as a whole, and the larger repeat its blocks."""
# Of these an axis more or less is no fault.
ANY_RANK = {"...", "... width", "... classes", "n", "... choices", "... choices experts", "... choices bits*"}


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


def unreachable(text, kinds):
    """Whether a check, or the kinds of error that no negative raises there, are among the exceptions."""
    if any(
        f"{quote}{name}{end}" in text for name in UNREACHABLE for quote, end in (("'", "'"), ("'", ":"), ('"', ":"))
    ):
        return True
    return any(text.startswith(start) and kinds <= known for start, (known, _) in EARLIER.items())


def test_every_check_has_a_negative():
    found = raised()
    missing = []
    for (file, lines), (text, kinds) in checks().items():
        hit = set().union(*(found[file, line] for line in lines))
        if not ((hit and hit >= kinds) or unreachable(text, kinds - hit)):
            missing.append(f"{file}:{lines[0]} {text}: {sorted(kinds - hit)}")
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize("algorithm", [name for name in PROGRAMS if name not in (*WITHOUT_GRADIENT, *MODELS)])
def test_every_input_has_a_gradient(algorithm):
    cases = [case for case in CASES if case.algorithm == algorithm and case.kind != "negative"]
    assert floats(cases) - derived(cases) <= UNDERIVED.get(algorithm, set())


@pytest.mark.parametrize("model", sorted(MODELS - {"vit"}))
def test_every_parameter_of_a_small_model_has_a_gradient(model):
    """But the bias after which the final norm takes the mean of the channels away."""
    cases = [case for case in CASES if case.algorithm == model and case.gradients]
    assert {name.removesuffix("token_mlp/b2") for name in floats(cases) - derived(cases)} <= {"params/blocks/0/"}


def floats(cases):
    return {name for case in cases for name, tensor in case.inputs.items() if tensor.array.dtype.kind == "f"}


def derived(cases):
    return {name for case in cases if case.gradients for name in case.gradients.wrt}
