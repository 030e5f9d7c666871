"""`moespec conformance golden --cases MODULE --out FOLDER`: vectors of routers of the user's own, and which backends pass them.

FOLDER has `suite.json` and `vectors`, as ours are, and `ROUTERS.md`: what they compute, their options, cases and results.
"""

import importlib
import inspect
import sys
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from moespec import spec
from moespec.conformance.author.definition import Definition
from moespec.conformance.author.reference import SPEC
from moespec.conformance.check import process
from moespec.conformance.check.results import Report
from moespec.conformance.check.run import Plan
from moespec.conformance.compare import DTYPES
from moespec.conformance.functions import FUNCTIONS
from moespec.conformance.golden.derived import three_each, valid_definitions
from moespec.conformance.golden.generate import generate
from moespec.conformance.matrix_rows import ALGORITHMS
from moespec.conformance.report import matrix
from moespec.conformance.suite import digest
from moespec.models.files import write_atomically
from moespec.models.options import help_texts
from moespec.spec.errors import ConfigError
from moespec.spec.own import load_own
from moespec.spec.routers import ROUTERS

__all__ = ["publish", "read"]

BACKENDS = ("numpy", "jax", "torch")


def publish(name: str, folder: Path, *, check: bool) -> int:
    """Make the vectors that a module defines, or with `check` compare them; check the backends, write the page. The exit status."""
    definitions, routers = read(name)
    vectors, failed, page = folder / "vectors", 0, "".join(map(_described, routers.values())) + "# Results\n\n"
    generate(vectors, check=check, own=definitions)
    process.TRUSTED[:] = routers.values()
    for backend in BACKENDS:
        if find_spec(backend) is None:
            print(f"{backend} is not installed, and was not checked")
            continue
        report = Report("target", f"moespec.backends.{backend}", digest(vectors), [])
        plan = Plan(report, sorted(definitions), [*DTYPES], ["eager"], vectors=vectors)
        report = plan.joined([each for part in plan.parts() for each in plan.check(*part).values()])
        print(report.target, matrix.summary(report, [*routers]), matrix.total([report]), sep="\n\n", end="\n\n")
        page += f"* `{report.target}`: {matrix.total([report])}\n"
        failed += report.counts[1]
    if not check:
        cases = "".join(f"* `{id}`: {each.purpose}\n" for id, each in definitions.items())
        write_atomically(folder / "ROUTERS.md", f"{page}\n# Cases\n\n{cases}".encode())
    return 1 if failed else 0


def read(name: str) -> tuple[dict[str, Definition], dict[str, str]]:
    """The cases by id of a module, which is imported, with an error case; its routers by row. These rows and functions are known then.

    Raises ConfigError for anything else.
    """
    try:
        module: Any = importlib.import_module(name)
        for each in getattr(module, "FUNCTIONS", ()):
            function, FUNCTIONS[each.name] = load_own("FUNCTIONS", each.name), each
            takes_backend = "B" in inspect.signature(function).parameters
            setattr(SPEC, function.__name__, partial(function, spec) if takes_backend else function)
        written = [*module.cases()]
        routers = {ROUTERS[each.routed.router].name: each.routed.router for each in written}
    except Exception as error:  # whatever the user's module raises
        raise ConfigError(f"cases={name!r}: {type(error).__name__}: {error}") from error
    if taken := spec.ALGORITHMS.keys() & routers.keys():
        raise ConfigError(
            f"cases={name!r}: moespec has a router {min(taken)!r}; the first argument of Router is its name"
        )
    ALGORITHMS.update({row: replace(ROUTERS[router].algorithm, functions=(router,)) for row, router in routers.items()})
    written += three_each(valid_definitions(written), ())
    return {each.id: each for each in written}, routers


def _described(name: str) -> str:
    """What the page says of a router."""
    router: Any = ROUTERS[name]
    texts, options = help_texts(router.Options), inspect.signature(router.Options).parameters.values()
    text = inspect.cleandoc(sys.modules[router.Options.__module__].__doc__ or "")
    lines = "".join(f"* `{each.replace(annotation=each.empty)}`: {texts.get(each.name, '')}\n" for each in options)
    return f"# {router.name}\n\n{text}\n\n`{name}`, revision {router.revision}; {router.source}.\n\n{lines}\n"
