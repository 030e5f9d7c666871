"""What the vectors cover, by rule."""

from dataclasses import replace
from fnmatch import fnmatchcase

import pytest
from committed import CASES

from moespec.conformance.coverage import EXEMPT, RULES, exemption, table

ROWS = {row.call: row for row in table(CASES)}


@pytest.mark.parametrize("call", ROWS)
def test_nothing_is_missing(call):
    assert not ROWS[call].missing()


def test_every_rule_asks_for_something():
    assert {what.partition(":")[0] for row in ROWS.values() for what in row.asked} == set(RULES)


def test_every_exemption_is_needed():
    """Each excuses something that no case has."""
    lacking = [(row.call, what) for row in ROWS.values() for what in row.asked - row.found.keys()]
    keys = {":".join((what.partition(":")[0], call, what.partition(":")[2])) for call, what in lacking}
    assert not [key for key in EXEMPT if not any(fnmatchcase(each, key) for each in keys)]
    assert all(exemption(call, what) for call, what in lacking)


def test_the_wide_cases_are_needed():
    """Without them something of every router and of most functions is missing."""
    rest = [case for case in CASES if not case.id.endswith(("odd_sizes", "/wide"))]
    short = {row.call for row in table(rest) if row.missing()}
    assert {call for call in ROWS if call.endswith(".route")} <= short
    assert len(short) > len(ROWS) / 2


@pytest.mark.parametrize(
    "what", ["groups:", "bits:scores", "gradient:scores", "index:experts", "choices:", "one:tokens"]
)
def test_a_case_less_is_seen(what):
    """Without what a rule found first, another case has it, or it is missing."""
    row = ROWS["token_choice"]
    left = [case for case in CASES if case.id != row.found[what]]
    again = next(row for row in table(left) if row.call == "token_choice")
    assert what in again.missing() or again.found[what] != row.found[what]


def test_a_new_function_comes_under_every_rule():
    case = next(case for case in CASES if case.id == "z_loss/values")
    stage = replace(case.stages[-1], call="softmax_affinity")
    (row,) = (row for row in table([replace(case, stages=(stage,))]) if row.call == "softmax_affinity")
    assert {what.partition(":")[0] for what in row.missing()} >= {"groups", "odd", "tokens", "bits", "gradient", "one"}
