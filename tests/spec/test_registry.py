"""The registry: every public function belongs to a row, and every line of the ledger in a docstring is read."""

import importlib
import inspect
import pkgutil
import re

import pytest

from moespec import spec
from moespec.spec import ALGORITHMS, LEDGER

PAPER = re.compile(r"the paper|(?P<name>\w[^()/,;]*) \(arXiv (?P<number>\d{4}\.\d{5})\)")
PLACE = "sections? |eqs?. |appendix |Algorithm |caption |the formula "
SUPPORT = {"mean", "slot_tokens", "stop_gradient"}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_row(name):
    algorithm = ALGORITHMS[name]
    assert algorithm.name == name
    assert "arXiv" in algorithm.cites or "doi" in algorithm.cites or "kexue.fm" in algorithm.cites
    assert algorithm.revision >= 1
    assert all(hasattr(spec, function) for function in algorithm.functions)


def test_every_public_function_is_in_a_row():
    functions = {name for name in spec.__all__ if inspect.isfunction(getattr(spec, name))}
    assert functions - SUPPORT == {f for a in ALGORITHMS.values() for f in a.functions if f.islower()}


def test_ledger_entries_are_whole():
    for name, entry in LEDGER.items():
        assert entry.id == name
        assert entry.question.endswith("?"), name
        assert [reading.id for reading in entry.readings] == [f"{name}{letter}" for letter in "abcdefgh"][
            : len(entry.readings)
        ]
        assert len(entry.readings) > 1, name
        for reading in entry.readings:
            assert reading.text.endswith((".", ")")), reading.id
            assert all(each.who for each in reading.implementations), reading.id
        assert not entry.pitfall or any(PAPER.fullmatch(each.who) for each in entry.readings[0].implementations), name


def test_papers_and_code_are_named_in_one_way():
    """Papers besides that of the module by name and number, one name for each; code by its repository."""
    names = {}
    for each in (each for entry in LEDGER.values() for reading in entry.readings for each in reading.implementations):
        paper = PAPER.fullmatch(each.who)
        assert paper or re.fullmatch(r"[\w.-]+/[\w.-]+", each.who), each.who
        assert each.who != "the paper" or re.match(PLACE, each.where), f"not a place in the paper: {each.where}"
        if paper and paper["number"]:
            names.setdefault(paper["number"], set()).add(paper["name"])
    assert all(len(used) == 1 for used in names.values()), names
    assert len(names) > 3


def test_ledger_has_every_line_of_the_docstrings():
    written = dict.fromkeys(("    Reading: ", "    Alternative ", "        By: "), 0)
    for module in pkgutil.walk_packages(spec.__path__, "moespec.spec."):
        if module.name == "moespec.spec.ledger":  # describes the form
            continue
        for line in importlib.import_module(module.name).__doc__.splitlines():
            for label in written:
                written[label] += line.startswith(label)
    readings = [reading for entry in LEDGER.values() for reading in entry.readings]
    taken = sum(bool(reading.implementations) for reading in readings)
    assert list(written.values()) == [len(LEDGER), len(readings) - len(LEDGER), taken]


RETIRED = ("SM-6",)
"""Ids of entries that are gone. No other entry gets them, since they are cited."""


def test_ids_of_a_module_share_a_prefix_and_count_up():
    prefixes = {}
    for name in sorted({*LEDGER, *RETIRED}, key=lambda name: int(name.partition("-")[2])):
        prefix, number = name.split("-")
        prefixes.setdefault(prefix, []).append(int(number))
    assert not LEDGER.keys() & set(RETIRED)
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in prefixes.values())
