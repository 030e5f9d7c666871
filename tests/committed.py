"""The committed cases, read once for all tests that look at them, and a short way to run some."""

from types import SimpleNamespace

import numpy as np

import moespec.backends.numpy as reference
from moespec.backends.routers import composed
from moespec.conformance import suite
from moespec.conformance.check.run import run_cases
from moespec.conformance.check.target import Target
from moespec.conformance.compare import DTYPES
from moespec.conformance.golden.generate import suite_text
from moespec.conformance.manifest import encode

CASES = suite.load()
BY_ID = {case.id: case for case in CASES}


def of(*algorithms, kinds=()):
    """The cases of some algorithms, of all kinds or of some."""
    return [case for case in CASES if case.algorithm in algorithms and (not kinds or case.kind in kinds)]


def results_of(module, cases, dtype="float64"):
    """What comes of cases on a module, op by op."""
    with np.errstate(all="ignore"):  # of modules that compute with NaN
        return run_cases(Target("changed", DTYPES[dtype], module), cases, "eager")


def replaced(**names):
    """The NumPy backend with some names replaced."""
    return SimpleNamespace(**{**vars(reference), **names})


def rewired(backend, **names):
    """A backend with some names replaced, and its routers composed of these."""
    module = SimpleNamespace(**{**vars(backend), **names})
    module.ROUTERS = composed(module)
    return module


def counted(printed):
    """ "N passed, N failed, N skipped", with which the last line begins."""
    return printed.splitlines()[-1].partition(";")[0]


def content(cases):
    """All that cases hold, to be compared."""
    return [(entry, {name: array.tobytes() for name, array in arrays.items()}) for entry, arrays in map(encode, cases)]


def commit(folder):
    """Makes the `suite.json` of the vectors in a folder as they are."""
    (folder.parent / "suite.json").write_text(suite_text(folder))
