"""Whatever a public function is given, it returns, or raises a `SpecError` that names an argument: no other exception.

Each function has a valid call, that of a vector; its arguments are replaced by seeded draws of all that a user may pass by
mistake: ragged, empty, of another dtype or rank, not finite, negative, huge, and what is no array at all.
"""

import inspect
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from committed import CASES

from moespec import spec
from moespec.conformance import call
from moespec.conformance.author.reference import SPEC, Making
from moespec.conformance.format import Case
from moespec.conformance.golden.derived import valid_calls
from moespec.spec import ROUTERS, Routing, SpecError
from moespec.spec.options import RouterOptions

pytestmark = pytest.mark.filterwarnings("ignore")  # of overflow: what is drawn is huge

RAGGED = [[1.0, 2.0], [3.0]]
ROUNDS = 200


def called(case: Case, **arguments: object) -> object:
    """The last call of a case with these arrays, by the names of inputs, and options."""
    stage = case.stages[-1]
    options = {name: value for name, value in arguments.items() if name not in case.inputs}
    stages = {each.name: each for each in (*case.stages[:-1], replace(stage, options=options))}
    return call.result(SPEC, stages[stage.name], stages, case.inputs)(arguments)


def arguments_of(case: Case) -> dict[str, object]:
    """The arrays of the first group, and all options."""
    stage = case.stages[-1]
    parameters = inspect.signature(getattr(spec, stage.call)).parameters
    options = {name: parameter.default for name, parameter in parameters.items() if name not in stage.arguments}
    making = Making(case.inputs, {each.name: each for each in case.stages})
    defaults = {name: value for name, value in options.items() if value is not inspect.Parameter.empty}
    return {**making.groups(stage)[0], **defaults, **stage.options}


def routed(name: str, dispatch: object, combine: object) -> object:
    """A function of a routing alone as one of its tensors."""
    return getattr(spec, name)(Routing(dispatch, combine))


SLOTS = {"dispatch": np.ones((6, 3, 2)), "combine": np.ones((6, 3, 2))}
OF_ROUTINGS = ("collapse_metrics", "cumulative_dispatch", "experts_per_token", "routing_metrics", "summed_dispatch")
CALLS = {
    path: (partial(called, case), arguments_of(case)) for path, case in valid_calls(CASES).items() if "." not in path
}
CALLS |= {name: (partial(routed, name), SLOTS) for name in OF_ROUTINGS}
CALLS |= {name: (getattr(spec, name), {"x": [1.0, 2.0]}) for name in ("mean", "stop_gradient")}


def spoiled(random: np.random.Generator, value: object) -> object:
    """Something in the place of an argument: a whole other value, or the array with other numbers, dtype or shape."""
    array = np.asarray(value)
    kind = random.integers(5)
    if kind == 0:  # no array, or another
        others = [None, "text", b"", True, object(), {}, [], [[]], RAGGED, [RAGGED, RAGGED], [[1.0], None], ["a", 1.0]]
        others += [0, -1, 2**31, 2**63, 2**64, 10**400, -(10**400), 1.5, -0.5, 1e308, np.nan, np.inf, -np.inf, 1j]
        others += [np.zeros((0, 3)), np.zeros(()), np.float16(1), np.uint64(2**64 - 1), np.datetime64(0, "s"), {1, 2}]
        return others[random.integers(len(others))]
    if array.dtype.kind not in "iufc":
        return array
    if kind == 1:  # another dtype
        dtypes = [np.int8, np.int64, np.uint64, np.bool_, np.float16, np.float32, np.complex64, object, np.str_]
        return array.astype(dtypes[random.integers(len(dtypes))])
    if kind == 2:  # other numbers, all of them or one
        numbers = [np.nan, np.inf, -np.inf, -1.0, 0.0, 1e308, -1e308, 1e-320, 2.0**62]
        changed = array.astype(np.float64).copy()
        number = numbers[random.integers(len(numbers))]
        changed[...] = number if random.integers(2) else changed
        changed.flat[-1] = number
        return changed
    if kind == 3:  # integers out of range
        return np.asarray(array.real + random.choice([-1, -(2**40), 2**31, 2**62, 1])).astype(np.int64)
    axis = random.integers(array.ndim + 1)  # another shape
    if axis == array.ndim:
        return array[None]
    return [np.delete(array, 0, axis), np.concatenate([array, array], axis), array[..., :0]][random.integers(3)]


def try_once(function, arguments, random) -> str:
    """The exception, if it is no SpecError that begins with a name, of a call with one to three arguments spoiled."""
    names = random.permutation(list(arguments))[: 1 + random.integers(min(3, len(arguments)))]
    changes = {str(name): spoiled(random, arguments[name]) for name in names}
    try:
        function(**{**arguments, **changes})
    except SpecError as error:
        return "" if re.match(r"[\w. ]+[:=]", str(error)) else f"no name of an argument in {error!s}"
    except Exception as error:
        return f"{changes!r}: {type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize("name", CALLS)
def test_every_error_of_a_function_is_a_spec_error(name: str) -> None:
    function, arguments = CALLS[name]
    function(**arguments)
    random = np.random.default_rng([7, *name.encode()])
    messages = [try_once(function, arguments, random) for _ in range(ROUNDS)]
    assert [each for each in messages if each] == []


SIZES = {"width": 3, "experts": 3, "tokens": 6}


@pytest.mark.parametrize("name", ROUTERS)
def test_every_error_of_a_router_is_a_spec_error(name: str) -> None:
    """Of its options, and of its route."""
    router = ROUTERS[name]
    random = np.random.default_rng([7, *name.encode()])
    fields = {field: getattr(router.options(**SIZES), field) for field in router.Options.__dataclass_fields__}
    messages = [try_once(router.options, fields, random) for _ in range(ROUNDS)]
    options: RouterOptions = router.options(**SIZES)
    params = router.init(np.random.default_rng(0), options)
    tokens = np.random.default_rng(1).standard_normal((6, 3))
    record = router.noise(options)
    noise = {} if record is None else {"noise": np.full(record.shape, 0.5)}
    ids = {"ids": np.arange(6)} if router.requires else {}

    def route(tokens: object, **changes: object) -> None:
        parameters = {part: changes.pop(part) for part in params}
        router.route(parameters, tokens, options, train=True, **changes)

    messages += [try_once(route, {"tokens": tokens, **params, **noise, **ids}, random) for _ in range(ROUNDS)]
    assert [each for each in messages if each] == []
