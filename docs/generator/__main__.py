"""Build the documentation site in build/site: `python -m generator [REPORT.json ...]`."""

import argparse
import os
import shutil
import sys
from pathlib import Path

from sphinx.cmd.build import build_main

from generator.catalogue import ROOT
from generator.citations import version
from generator.evidence import reports
from generator.write import DOCS, write
from moespec.conformance.report.report import ReportError


def main() -> int:
    """Build the site. Returns 0 if every example passes and every internal link resolves."""
    parser = argparse.ArgumentParser(prog="python -m generator", description=__doc__)
    parser.add_argument("reports", type=Path, nargs="*", help="reports of the suite; each adds rows to the matrix")
    options = parser.parse_args()
    made, site = ROOT / "build" / "pages", ROOT / "build" / "site"
    try:
        results = reports(options.reports)
    except ReportError as error:
        print(f"{error}; run `nox -s conformance` again, or delete the report", file=sys.stderr)
        return 1
    write(made, results)
    shutil.copytree(DOCS / "_static", made / "_static")
    shutil.copytree(DOCS / "examples", made / "examples")
    number = os.environ["MOESPEC_VERSION"] = ".".join(version().split(".")[:2])
    shutil.rmtree(site / number, ignore_errors=True)
    if status := build_main(
        ["-n", "-W", "--keep-going", "-q", "-j", "auto", "-c", str(DOCS), str(made), str(site / number)]
    ):
        return int(status)
    latest = site / "latest"
    latest.unlink(missing_ok=True)
    latest.symlink_to(number)
    (site / "index.html").write_text('<!doctype html><meta http-equiv="refresh" content="0; url=latest/index.html">')
    print(f"{len(list((site / number).glob('*.html')))} pages in {site / number}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
