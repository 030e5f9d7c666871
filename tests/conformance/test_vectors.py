"""The committed vectors: their form, their size, and that they cover what the registry lists."""

import pytest

from moespec.conformance import suite

CASES = suite.load()
IDS = [case.id for case in CASES]


def test_flags_in_use_are_the_flags_defined():
    assert {flag for case in CASES for flag in case.flags} == set(suite.flags())


@pytest.mark.parametrize("flag", suite.flags())
def test_a_flag_says_what_goes_wrong_and_why_it_matters(flag):
    meaning = suite.flags()[flag]
    assert set(meaning) == {"goes_wrong", "matters"}
    assert all(text[0].isupper() and text.endswith(".") and len(text) > 40 for text in meaning.values())
