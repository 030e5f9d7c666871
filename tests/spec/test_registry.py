"""The registry: every public function belongs to a row, and every reading in a docstring is an entry of the ledger."""

import importlib
import inspect
import pkgutil

import pytest

from moespec import spec
from moespec.spec import ALGORITHMS, LEDGER

SUPPORT = {"mean", "slot_tokens", "stop_gradient"}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_row(name):
    algorithm = ALGORITHMS[name]
    assert algorithm.name == name
    assert "arXiv" in algorithm.cites
    assert algorithm.revision >= 1
    assert all(hasattr(spec, function) for function in algorithm.functions)


def test_every_public_function_is_in_a_row():
    functions = {name for name in spec.__all__ if inspect.isfunction(getattr(spec, name))}
    assert functions - SUPPORT == {f for a in ALGORITHMS.values() for f in a.functions if f.islower()}


def test_ledger_entries_are_whole():
    for name, entry in LEDGER.items():
        assert entry.id == name
        assert entry.question.endswith("?"), name
        for text in (entry.reading, entry.alternatives):
            assert text.endswith("."), name
            assert "Reading:" not in text, name
            assert "Alternatives:" not in text, name


def test_ledger_has_every_entry_of_the_docstrings():
    written = 0
    for module in pkgutil.walk_packages(spec.__path__, "moespec.spec."):
        documentation = importlib.import_module(module.name).__doc__
        lines = [line for line in documentation.splitlines() if line.startswith("    Reading: ")]
        written += len(lines)
    assert written == len(LEDGER)


def test_ids_of_a_module_share_a_prefix_and_count_up():
    prefixes = {}
    for name in LEDGER:
        prefix, number = name.split("-")
        prefixes.setdefault(prefix, []).append(int(number))
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in prefixes.values())
