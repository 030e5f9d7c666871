"""Find a changed call that reproduces a wrong result, by running the reference backend with one array or option changed.

If no known variant matches, the changed call shows which array or option a target ignores or confuses: "it is the expected result with
experts/b2 = 0", "with noisy instead of logits", "with choices=1".
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.conformance import call
from moespec.conformance.check.match_variant import Known, Place
from moespec.conformance.check.relations import quantities, short
from moespec.conformance.check.target import Job, Values, execute
from moespec.conformance.compare import ALL_DTYPES
from moespec.conformance.format import Tensor
from moespec.conformance.functions import function

__all__ = ["changed_calls"]

TRIED = 3
"""Number of failures of a stage on which all changes are tried. On later failures, only changes that explain an earlier one are tried."""
LARGE = 50_000
"""Maximum total array size of a call; larger calls take too long."""
CHANGES: dict[str, Callable[..., NDArray[Any]]] = {
    **{"{} = 0": np.zeros_like, "{} = 1": np.ones_like, "{} negated": np.negative, "{} inverted": np.reciprocal},
    **{"{} squared": np.square, "exp({0}) instead of {0}": np.exp, "ln({0}) instead of {0}": np.log},
    **{
        "{} transposed": lambda x: x.swapaxes(-1, -2) if x.ndim > 1 else x,
        "{} rounded to bfloat16": partial(short, bits=8),
    },
}
"""Maps the description of each change to a function that changes an array."""


def changed_calls(known: Known, failing: Sequence[tuple[Place, Values, str]]) -> dict[Place, str]:
    """Returns, for each failure of one stage, a sentence on the change that explains the most failures.

    failing: tuples ((case id, stage), returned values, dtype). If several failures are given, a change must explain at least two.
    """
    fitting: dict[str, list[Place]] = {}
    for number, (place, returned, dtype) in enumerate(failing):
        for text, job in _changes(known, place):
            if number < TRIED or text in fitting:
                with np.errstate(all="ignore"):
                    (found,) = execute(known.target(""), [job], "eager")
                if not isinstance(found, Exception) and known.equals(place, found, returned, ALL_DTYPES[dtype]):
                    fitting.setdefault(text, []).append(place)
    best: dict[Place, list[str]] = {}
    for text, places in sorted(fitting.items(), key=lambda one: -len(one[1])):
        for place in places if len(places) >= min(2, len(failing)) else ():
            if place not in best or len(places) == len(fitting[best[place][0]]):
                best.setdefault(place, []).append(text)
    return {place: f"it is the expected result with {' or '.join(texts[:2])}" for place, texts in best.items()}


def _changes(known: Known, place: Place) -> Iterator[tuple[str, Job]]:
    """Yields changed calls with descriptions. A change replaces an array, or sets an option to a nearby number or another case's value."""
    job = known.job(place)
    if function(job.stage.call).batched or sum(tensor.array.size for tensor in job.values.values()) > LARGE:
        return
    arrays = {
        n: x
        for n, x in call.golden(job.case).items()
        if x.array.dtype.kind == "f" and n.split("/")[0] != job.stage.name
    }
    read = {name: tensor for name, tensor in job.values.items() if name in arrays and tensor.array.any()}
    factors = {} if job.stage.router else {"2": 2.0} | {of: x for of, x in quantities(job.case).items() if x != 1}
    for name, tensor in read.items():
        x = tensor.array
        with np.errstate(all="ignore"):
            made = {text.format(name): change(x) for text, change in CHANGES.items()}
        made |= {f"{name} times {of}": x * y for of, y in factors.items()}
        made |= {f"{name} divided by {of}": x / y for of, y in factors.items()}
        made |= {
            f"{other} instead of {name}": y.array
            for other, y in arrays.items()
            if other != name and y.array.shape == x.shape
        }
        for text, array in made.items():
            yield text, replace(job, values={**job.values, name: Tensor(array, tensor.axes)})
    for name in job.stage.arguments:
        fewer = {other: each for other, each in job.stage.arguments.items() if other != name}
        yield f"no {name}", replace(job, stage=replace(job.stage, arguments=fewer))
    for a, b in combinations(read, 2):
        if read[a].array.shape == read[b].array.shape:
            yield f"{a} and {b} swapped", replace(job, values={**job.values, a: read[b], b: read[a]})
    record = "options" if job.stage.router else ""
    of = [each for case in known.cases.values() for each in case.stages if each.call == job.stage.call]
    settings = [each.options.get(record, each.options) for each in (job.stage, *of)]
    for name, value in settings[0].items():
        others = [each.get(name) for each in settings]
        if type(value) in (int, float):
            others = [each for each in (value - 1, value + 1, 0, 1, *others) if each is None or 0 <= each <= value + 1]
        for other in dict.fromkeys(each for each in others if not isinstance(each, list | dict)):
            if other != value:
                made_of = {**settings[0], name: other}
                options = {**job.stage.options, record: made_of} if record else made_of
                yield f"{name}={other!r}", replace(job, stage=replace(job.stage, options=options))
