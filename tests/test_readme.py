"""README.md fits on one screen and says of the ledger what is in it; the Python blocks of the first steps run, as those of all
pages do when the site is made; links lead somewhere."""

import re
from pathlib import Path

import pytest

from moespec.models.ledger.implementations import measured
from moespec.spec import LEDGER

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "quickstart.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_python_block_runs(number, tmp_path, monkeypatch):
    monkeypatch.delenv("MOESPEC_BACKEND", raising=False)
    monkeypatch.chdir(tmp_path)
    exec(compile(BLOCKS[number], f"quickstart.md, block {number}", "exec"), {"__name__": "__main__"})


def test_the_readme_is_short_and_links():
    assert len(README.split()) <= 600
    assert sum("http" in line for line in README.splitlines()) >= 15
    addresses = re.findall(r"^\[(.+?)]: https://\S+$", README, re.MULTILINE)
    assert set(re.findall(r"]\[(.+?)]", README)) <= set(addresses)
    assert [label for label in addresses if README.count(f"[{label}]") < 2] == []


def test_the_numbers_of_the_ledger():
    """Differences count where the ledger knows who gives two readings or more."""
    ran = {id for package in measured() for id in package.readings}
    known = [sum(bool(each.takers) or each.id in ran for each in entry.readings) for entry in LEDGER.values()]
    said = re.search(r"has (\d+) such questions; at\s+(\d+) it names", README)
    assert said, "the sentence with the numbers"
    assert tuple(map(int, said.groups())) == (len(LEDGER), sum(count > 1 for count in known))


def test_the_example_of_the_ledger():
    """Each name of the table of TC-4 is of a code base that gives that answer."""
    for answer, reading in zip(("no", "yes"), LEDGER["TC-4"].readings, strict=True):
        (row,) = re.findall(rf"^\| {answer} \| (.*) \|$", README, re.MULTILINE)
        said = [label or text for text, label in re.findall(r"\[(.+?)](?:\[(.+?)])?", row)]
        takers = {f"https://github.com/{taker.who}" for taker in reading.takers}
        assert {re.search(rf"^\[{label}]: (\S+)$", README, re.MULTILINE)[1] for label in said} <= takers


def test_every_link_to_a_file_leads_somewhere():
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name}: {target}"
