"""The error cases and gradients leave nothing out: what the specification checks is failed, what is smooth is derived."""

import ast
from collections import defaultdict
from pathlib import Path
from traceback import walk_tb

from committed import CASES

from moespec import spec
from moespec.conformance.engine import call
from moespec.conformance.engine.reference import Making, backend

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
    "numerics.py": {"x": "a mean is a part of what stages compute, and no stage"},
    "metrics.py": {"routing.dispatch": ALLOCATED, "routing.combine": ALLOCATED},
    "routing.py": {"routing": ALLOCATED},
    "sparse_mlp.py": {"params": "a case names every parameter"},
}
# Errors that cannot be raised at a check, and why.
EARLIER = {
    "as_array(name, value, AXES[name])": ({"ShapeError", "DtypeError"}, "check_rescale has raised them"),
    "raise ShapeError(f'{name}: its rows have different lengths')": (set(), "the arrays of a case have no such rows"),
    "raise ContractError(f'first: {largest} times": (set(), "the ids of a case have 32 bits"),
    "raise ContractError(f'{name}: expected a finite number, got an integer": (
        set(),
        "a case writes no integer that long",
    ),
    "as_array('bias', ": ({"ContractError"}, "a router may find it in the codes that it makes of them"),
    "check_scores('selectors', ": (set(), "backends call it, to count the groups of the selectors"),
    "check_scores('bias', ": (set(), "backends call it, whose arrays have no values to look at"),
}
# Arrays of these axes may have one more or less.
ANY_RANK = {
    "...",
    "... pair",
    "... width",
    "... classes",
    "n",
    "... choices",
    "... choices experts",
    "... choices bits*",
}


def checks():
    """`(file, lines, text) -> kinds of error` of all checks and raises of the specification but those of `checks.py` and of imports."""
    found = {}
    for path in sorted(FOLDER.glob("*.py")):
        if path.name in ("__init__.py", "checks.py", "errors.py"):
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
    """`(file, line) -> names of errors` that the error cases raise there, or in what is called from there."""
    found = defaultdict(set)
    for case in CASES:
        if case.expect is None:
            continue
        making = Making(case.inputs, {stage.name: stage for stage in case.stages})
        stage = case.stage(case.expect.stage)
        try:
            for group in making.groups(stage):
                call.result(backend(stage), stage, making.stages, making.tensors)(group)
        except spec.SpecError as error:
            for frame, line in walk_tb(error.__traceback__):
                path = Path(frame.f_code.co_filename)
                if path.parent == FOLDER:
                    found[path.name, line].add(type(error).__name__)
    return found


def unreachable(file, text, kinds):
    """Whether a check, or the kinds of error that no case raises there, are among the exceptions."""
    if any(f"{quote}{name}{end}" in text for name in UNREACHABLE.get(file, ()) for quote, end in ("''", "':", '":')):
        return True
    return any(text.startswith(start) and kinds <= known for start, (known, _) in EARLIER.items())


def test_every_check_has_an_error_case():
    found = raised()
    missing = []
    for (file, lines, text), kinds in checks().items():
        hit = set().union(*(found[file, line] for line in lines))
        if not ((hit and hit >= kinds) or unreachable(file, text, kinds - hit)):
            missing.append(f"{file}:{lines[0]} {text}: {sorted(kinds - hit)}")
    assert not missing, "\n".join(missing)


# Algorithms, stages, and inputs of a stage that have no gradient.
NOT_SMOOTH = {
    **dict.fromkeys(("batch_priority", "importance_score_order"), "an order is not a number"),
    **dict.fromkeys(("base_greedy",), "an assignment is not a number"),
    "gshard_keep": "whether a choice is made is not a number",
    **dict.fromkeys(("batchwise_mask", "threshold_mask"), "a mask is not a number"),
    "dropout/dropout/draws": "whether an entry is kept is not a number",
    "threefry/box_muller/uniform": "random numbers are drawn, not trained",
    **dict.fromkeys(("token_ids", "hash_tables", "hash_table_of"), "tables and ids are made before training"),
    "hash/moe_layer/router/tables": "a constant: the numbers of the experts",
    "sparse_transport_affinity": "the plan only selects, and carries none",
    **dict.fromkeys(("routing_metrics", "routing_statistics"), "they are logged, not trained by"),
    "capped_affinity": "it only selects, and carries none",
    "array_operations": "operations of the framework",
    **dict.fromkeys(("base/moe_layer/noise", "base_layers/base_assignment/noise"), "it only deals tokens to shards"),
    "gshard/moe_layer/noise": "it only decides which second experts are kept",
    **dict.fromkeys(
        (
            "batch_priority/token_choice",
            "dselect_k_gate/dselect_k_codes",
            "sparse_transport/router_logits",
            "moe_layer/token_choice",
            "moe_layer/expert_choice",
            "moe_layer/soft_routing",
            "moe_layer/dselect_k_routing",
            "moe_layer/router_logits",
            "expert_choice/router_logits",
            "gshard/router_logits",
            "noisy_top_k_affinity/router_logits",
            "token_choice/router_logits",
            "balance_loss/router_logits",
        ),
        "an algorithm of its own, and here a part of what is derived",
    ),
}


def test_every_float_input_has_a_gradient():
    """By stage; of a router at its end, which has all its inputs. Models are trained: their trajectories have theirs."""
    inputs, derived = defaultdict(set), defaultdict(set)
    for case in CASES:
        if case.expect is not None:
            continue
        stages, known = {stage.name: stage for stage in case.stages}, call.golden(case)
        routed = any(stage.router for stage in case.stages)
        for stage in case.stages[-1:] if routed else case.stages:
            if call.function(stage.call).run is None or call.function(stage.call).name == "array_operations":
                read = set(call.reads(stage, stages, known)) & case.inputs.keys()
                read = case.inputs.keys() if routed else read
                floats = {name for name in read if case.inputs[name].array.dtype.kind == "f"}
                inputs[f"{case.algorithm}/{stage.call}"] |= floats
        if case.gradients:
            stage = case.stages[-1] if routed else case.stage(case.gradients.stage)
            derived[f"{case.algorithm}/{stage.call}"] |= set(case.gradients.wrt)
    lacking = {f"{key}/{name}" for key in inputs for name in inputs[key] - derived[key]}
    lacking = sorted(key for key in lacking if not names_of(key) & set(NOT_SMOOTH))
    assert not lacking, "\n".join(lacking)


def names_of(key):
    """What an entry may call an input of a stage: its algorithm, its call, both, or all."""
    algorithm, function, _ = key.split("/", 2)
    return {algorithm, function, f"{algorithm}/{function}", key}
