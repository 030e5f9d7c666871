"""The negatives and gradients leave nothing out: what the specification checks is failed, what is smooth is derived."""

import ast
from collections import defaultdict
from pathlib import Path
from traceback import walk_tb

from moespec import spec
from moespec.conformance.program import select
from moespec.conformance.programs import PROGRAMS
from moespec.conformance.reference import groups_of, run
from moespec.conformance.suite import load

CASES = load()
FOLDER = Path(spec.__file__).parent
ARRAYS = ("as_array", "as_scalar")
ERRORS = {"ContractError", "ShapeError", "DtypeError"}

# What no case can fail, since its stages make it themselves, by file.
ALLOCATED = "the routing comes from an allocation"
UNREACHABLE = {
    "layer.py": {
        "routing.dispatch": ALLOCATED,
        "routing.combine": ALLOCATED,
        "experts": "the experts are MLPs",
        "params": "a case names every parameter",
    },
    "metrics.py": {"routing.dispatch": ALLOCATED, "routing.combine": ALLOCATED},
    "routing.py": {"routing": ALLOCATED},
    "sparse_mlp.py": {"params": "a case names every parameter"},
}
# Errors that are no fault at a check, and why.
EARLIER = {
    "as_array(name, value, AXES[name])": ({"ShapeError", "DtypeError"}, "check_rescale has raised them"),
    "as_array('bias', ": ({"ContractError"}, "a router may find it in the codes that it makes of them"),
    "check_scores('selectors', ": (set(), "backends ask it, to count the groups of the selectors"),
}
# Of these an axis more or less is no fault.
ANY_RANK = {"...", "... width", "... classes", "n", "... choices", "... choices experts", "... choices bits*"}


def checks():
    """`(file, lines, text) -> kinds of error` of all checks and raises of the specification but those of `checks.py`."""
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
            text = ast.unparse(node)
            found[path.name, range(node.lineno, node.end_lineno + 1), text] = kinds
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


def unreachable(file, text, kinds):
    """Whether a check, or the kinds of error that no negative raises there, are among the exceptions."""
    if any(f"{quote}{name}{end}" in text for name in UNREACHABLE.get(file, ()) for quote, end in ("''", "':", '":')):
        return True
    return any(text.startswith(start) and kinds <= known for start, (known, _) in EARLIER.items())


def test_every_check_has_a_negative():
    found = raised()
    missing = []
    for (file, lines, text), kinds in checks().items():
        hit = set().union(*(found[file, line] for line in lines))
        if not ((hit and hit >= kinds) or unreachable(file, text, kinds - hit)):
            missing.append(f"{file}:{lines[0]} {text}: {sorted(kinds - hit)}")
    assert not missing, "\n".join(missing)


# Algorithms, stages, and inputs of a stage that have no gradient.
SMOOTHLESS = {
    "capacity": "it has no input",
    "priority": "an order is no number",
    "batch_priority/allocation": "the stage is that of token_choice",
    "transport": "the plan only selects, and carries none",
    "metrics": "they are looked at, not trained by",
    "arrays": "operations of the framework",
    "forward": "a model is trained: its trajectories have the gradients",
    "train": "the gradients are in its steps",
    "base_layers/assignment": "an assignment is no number",
    "base_layers/greedy": "an assignment is no number",
    "gshard/route/noise": "it only decides which second experts are kept",
    "token_ids": "an id is no number",
    "hash_tables": "tables are made before training",
    "hash/route/router/tables": "a constant: the experts' numbers",
}


def test_every_input_has_a_gradient():
    """By stage; of a router the whole, which has all its inputs."""
    inputs, derived = defaultdict(set), defaultdict(set)
    for case in (case for case in CASES if case.kind != "negative"):
        for record in case.stages:
            stage = PROGRAMS[case.algorithm][record.name]
            if case.algorithm not in spec.ROUTERS or stage.whole:
                given = select(case.inputs, stage.reads).items()
                inputs[f"{case.algorithm}/{stage.name}"] |= {n for n, t in given if t.array.dtype.kind == "f"}
        if case.gradients:
            derived[f"{case.algorithm}/{case.gradients.stage}"] |= set(case.gradients.wrt)
    lacking = {f"{key}/{name}" for key in inputs for name in inputs[key] - derived[key]}
    assert {key for key in lacking if not named(key) & set(SMOOTHLESS)} == set()


def named(key):
    """What an entry may call an input of a stage: its algorithm, its stage, both, or all."""
    algorithm, stage, _ = key.split("/", 2)
    return {algorithm, stage, f"{algorithm}/{stage}", key}
