"""Where it can be read what the ledger says: every place is found in a copy of its repository, and has an address."""

import re

import pytest
from generator import find_places
from generator.find_places import cited, line_of, named

from moespec.spec import LEDGER
from moespec.spec.implementations.places import addresses, code, link, link_papers, of_package, places
from moespec.spec.ledger import Implementation

CITED = [(each, entry) for entry in LEDGER.values() for reading in entry.readings for each in reading.implementations]
CODE = r"https://github\.com/[\w.-]+/[\w.-]+/blob/([0-9a-f]{40}|v[\d.]+)/[\w./+-]+(#L[1-9]\d*)?"


def test_what_the_ledger_names_is_what_the_places_have():
    """After a change of a "By:" or "Source:": `python -m generator.find_places FOLDER`, with docs/ on the path."""
    lines = {who: {path: set(names) for path, names in each["lines"].items()} for who, each in places().items()}
    assert lines == named()


def test_every_taker_has_an_address_for_each_name():
    for implementation, entry in CITED:
        found = addresses(implementation, entry.module)
        if "/" in implementation.who:
            assert len(found) == max(1, len(code(implementation.where).names)), implementation
            assert all(re.fullmatch(CODE, each) for each in found), found
        else:
            assert len(found) == 1, implementation
            assert re.fullmatch(r"https://arxiv\.org/abs/\d{4}\.\d{4,5}", found[0]), found


def test_a_link_has_the_words_of_the_ledger():
    for implementation, entry in CITED:
        words = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", link(implementation, entry.module))
        assert words == ", ".join(filter(None, (implementation.who, implementation.where)))
    new = Implementation("new/code", "moe.py, gate")
    assert link(new, "moespec.spec.algorithms.losses") == "new/code, moe.py, gate"


def test_numbers_of_papers_become_links_but_not_in_code_or_twice_and_builds_of_packages_are_of_their_version():
    untouched = "<p>arXiv 2101.03961\n`arXiv 2101.03961` [x (arXiv 2101.03961)](y)\n```bibtex\narXiv:2101.03961\n```\n"
    assert link_papers(untouched) == untouched
    assert of_package("torch", "2.13.0+cpu") == "https://pypi.org/project/torch/2.13.0/"
    assert link_papers("(arXiv 2101.03961)") == "([arXiv 2101.03961](https://arxiv.org/abs/2101.03961))"


PYTHON = """\
def gate(): pass
class Gate:
    @property
    def gate(self): pass
call(
    lost)
def main():
    def step(): pass
top = call(1)
"""


@pytest.mark.parametrize(
    ("name", "line"), [("gate", 1), ("Gate.gate", 4), ("step", 8), ("top", 9), ("lost", None), ("Gate.step", None)]
)
def test_the_line_where_a_name_begins(name, line):
    assert line_of(PYTHON, name, "a.py") == line


def test_what_no_copy_has_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(find_places, "named", lambda: {"a/b": {"x.py": {"f", "g"}, "y.py": set()}})
    monkeypatch.setattr(find_places, "places", lambda: {"a/b": {"commit": "c0ffee"}})
    (tmp_path / "a" / "b-c0ffee").mkdir(parents=True)
    (tmp_path / "a" / "b-c0ffee" / "x.py").write_text("\ndef f(): pass\n")
    found, missing = find_places.find(tmp_path)
    assert found["a/b"]["lines"]["x.py"] == {"f": 2}
    assert missing == ["a/b: x.py has no g", f"a/b: no copy in {tmp_path} has y.py at commit c0ffee"]


def test_the_places_of_a_source():
    commit = "c" * 40
    source = f"The paper, eq. (1); a/b, x/y.py, f and G.h. `n`: a/c-d@{commit}, z.hpp, but see RN-1; e/f, z.py (g)."
    places = (("a/b", "x/y.py, f and G.h"), (f"a/c-d@{commit}", "z.hpp"), ("e/f", "z.py"))
    assert cited(source) == [Implementation(*place) for place in places]
    with pytest.raises(ValueError, match="expected a file after each repository"):
        cited("The paper; a/b, a folder.")
