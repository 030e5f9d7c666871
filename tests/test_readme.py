"""README.md fits on one screen and says of the ledger what is in it; links lead somewhere. Python blocks of pages run when the site is
made."""

import json
import re
from pathlib import Path

import pytest

from moespec.__main__ import main
from moespec.conformance import suite
from moespec.spec import LEDGER, ROUTERS
from moespec.spec.implementations.positions import measured
from moespec.training.configuration.configfile import recipes

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_readme_is_short_and_links():
    assert len(README.split()) <= 600
    assert sum("http" in line for line in README.splitlines()) >= 15
    addresses = re.findall(r"^\[(.+?)]: https://\S+$", README, re.MULTILINE)
    assert set(re.findall(r"]\[(.+?)]", README)) <= set(addresses)
    assert [label for label in addresses if README.count(f"[{label}]") < 2] == []


RAN = {id for package in measured() for id in package.readings}
DIFFER = sum(sum(bool(r.implementations) or r.id in RAN for r in entry.readings) > 1 for entry in LEDGER.values())
STUDY = json.loads((ROOT / "benchmarks/study/results.json").read_text())
RUN = json.loads((ROOT / "benchmarks/runs/digits-jax-0/metrics.jsonl").read_text().splitlines()[-1])
COUNTED = {"routers": len(ROUTERS), "questions": len(LEDGER), "recipes": len(recipes()), "cases": len(suite.ids())}
"""What may stand after a number, on any page."""
SAID = [  # page, sentence, its numbers
    ("README.md", r"specifies (\d+) published", [len(ROUTERS)]),
    ("README.md", r"lists (\d+) such questions; for\s+(\d+) it", [len(LEDGER), DIFFER]),
    ("README.md", r"(\d+) steps in (\d+) s\n", [RUN["step"], round(RUN["seconds"])]),
    ("README.md", r"accuracy 0\.(\d+) \((\d+) of", [round(1e4 * RUN["accuracy"]), round(355 * RUN["accuracy"])]),
    ("README.md", r"against (\d+) golden cases", [len(suite.ids())]),
    ("docs/weights.md", r"All (\d+) routers", [len(ROUTERS)]),
    (
        "docs/evaluation.md",
        r"has (\d+) of the (\d+) routers",
        [len(ROUTERS.keys() & STUDY["runs"].keys()), len(ROUTERS)],
    ),
]


@pytest.mark.parametrize(("page", "sentence", "numbers"), SAID)
def test_a_number_is_that_of_the_registry_or_of_a_record(page, sentence, numbers):
    """Differences count where the ledger knows who gives two readings or more."""
    assert [*map(int, re.search(sentence, (ROOT / page).read_text()).groups())] == numbers


def test_no_page_counts_otherwise():
    kinds = "|".join(COUNTED)
    pages = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "docs/templates").iterdir(),
    ]
    for path in pages:
        for number, kind in re.findall(rf"(?<!of )\b(\d[\d ]*) (?:\w+ )?({kinds})\b", path.read_text()):
            assert int(number.replace(" ", "")) == COUNTED[kind], f"{path.name}: {number} {kind}"
    page = (ROOT / "docs/evaluation.md").read_text()
    assert (
        set(re.findall(r"`(\w+)`", page.partition("has not trained")[2].partition(".")[0]))
        == ROUTERS.keys() - STUDY["runs"].keys()
    )


def test_the_transcript_is_what_the_command_prints(tmp_path, monkeypatch, capsys):
    """Lines that are broken there are whole here, and `...` is any number of lines."""
    (module,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (tmp_path / "my_router.py").write_text(module)
    monkeypatch.chdir(tmp_path)
    command, printed = re.search(r"\$ moespec (conformance run .*)\n([\s\S]*?)```", README).groups()
    assert main(command.split()) == 1
    pattern = ".*".join(re.escape(" ".join(part.split())) for part in printed.split("...\n"))
    assert re.fullmatch(rf"{pattern}\s*", " ".join(capsys.readouterr().out.split()))


def test_the_example_of_the_ledger():
    """Each name of the table of TC-4 is of a code base that gives that answer."""
    for answer, reading in zip(("no", "yes"), LEDGER["TC-4"].readings, strict=True):
        (row,) = re.findall(rf"^\| {answer} \| (.*) \|$", README, re.MULTILINE)
        said = [label or text for text, label in re.findall(r"\[(.+?)](?:\[(.+?)])?", row)]
        implementations = {f"https://github.com/{each.who}" for each in reading.implementations}
        assert {re.search(rf"^\[{label}]: (\S+)$", README, re.MULTILINE)[1] for label in said} <= implementations


def test_every_link_to_a_file_leads_somewhere():
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name}: {target}"
