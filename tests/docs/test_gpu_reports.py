"""The page of the suite names each report of a GPU with its suite and what failed."""

import json
import re

import pytest
from generator.catalogue import ROOT
from generator.gpu_reports import REPORTS, rows

REPORT = "gpu-jax-nvidia-h200.json"


def found(lines):
    """Without the dates of suites, which a clone without history does not tell."""
    return [re.sub(r", of \S+ \|", ", of another |", line) for line in lines if "(../conformance/reports/gpu-" in line]


PAGE = found((ROOT / "docs" / "conformance.md").read_text().splitlines())


def test_the_page_has_every_report():
    """After a change the table is what `python -m generator.gpu_reports` prints, with docs/ on the path."""
    assert found(rows()) == PAGE
    assert {path.name.split("-")[0] for path in REPORTS.iterdir()} == {"gpu", "peer"}  # docs/peers.md has these


@pytest.mark.parametrize("change", [{"suite": "0" * 64}, {"state": "fail", "fraction": 1.5}])
def test_a_report_that_the_page_does_not_name_is_rejected(change, tmp_path):
    report = json.loads((REPORTS / REPORT).read_text())
    (report if "suite" in change else report["cases"][0]).update(change)
    (tmp_path / REPORT).write_text(json.dumps(report))
    assert not set(found(rows(tmp_path))) <= set(PAGE)
