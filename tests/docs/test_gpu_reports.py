"""The reports of GPUs that are kept: the page of the suite names each with its suite and what failed."""

import json
import re

import pytest
from generator.gpu_reports import PAGE, REPORTS, placed, table

TEXT = PAGE.read_text(encoding="utf-8")
REPORT = "gpu-jax-nvidia-h200.json"


def undated(text):
    """Without the dates of suites, which a clone without history does not tell."""
    return re.sub(r" of \d{4}-\d\d-\d\d", "", text)


def test_the_page_names_every_report():
    """After a change: `python -m generator.gpu_reports`, with docs/ on the path. Those of peers are in docs/peers.md."""
    assert undated(TEXT) == undated(placed(TEXT, table(dated=False)))
    assert {path.name.split("-")[0] for path in REPORTS.iterdir()} == {"gpu", "peer"}


def failing(report):
    report["cases"][0] |= {"state": "fail", "fraction": 1.5}


def of_another_suite(report):
    report["suite"] = "0" * 64


@pytest.mark.parametrize("change", [failing, of_another_suite])
def test_a_report_that_the_page_does_not_name_is_rejected(change, tmp_path):
    report = json.loads((REPORTS / REPORT).read_text())
    (tmp_path / REPORT).write_text(json.dumps(report))
    assert all(line in undated(TEXT) for line in table(tmp_path, dated=False).splitlines())
    change(report)
    (tmp_path / REPORT).write_text(json.dumps(report))
    assert not all(line in undated(TEXT) for line in table(tmp_path, dated=False).splitlines())
