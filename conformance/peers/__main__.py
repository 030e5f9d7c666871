"""`python -m moespec.conformance.peers`: run the suite on peers that are installed, and write what all records say.

That is a table of what the peers compute, the readings of the ambiguity ledger that they were measured to take, and the
page of implementations, which has these and what the ledger itself says.
"""

import argparse
import json
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from moespec.conformance.format import VectorError
from moespec.conformance.peers import PEERS
from moespec.conformance.peers.measure import measure, read_record, write_record
from moespec.conformance.peers.readings import readings
from moespec.conformance.peers.table import table
from moespec.conformance.report.report import write_text
from moespec.conformance.suite import digest, load
from moespec.spec.implementations.positions import Measured
from moespec.spec.implementations.table import page

RECORDS = Path("conformance/reports")
PAGES = (Path("docs/peers.md"), Path("spec/implementations/measured.json"), Path("docs/implementations.md"))
"""Where the table, the measured readings and the page of implementations are written."""


def main(arguments: list[str] | None = None, root: Path = Path()) -> int:
    """The exit status: 0 when the table was written, whatever the peers compute; 1 when a peer could not be run.

    root: of the checkout, whose records are read and whose pages are written.
    """
    parser = argparse.ArgumentParser(prog="python -m moespec.conformance.peers", description=__doc__)
    words = f"run the suite on this (repeatable): {', '.join(PEERS)}; without it only what the records say is written"
    parser.add_argument("--peer", action="append", choices=list(PEERS), default=[], metavar="NAME", help=words)
    names = parser.parse_args(arguments).peer
    for folder in {root / RECORDS, *((root / path).parent for path in PAGES)}:
        if not folder.is_dir():
            print(f"there is no folder {str(folder)!r}; run this at the root of a checkout", file=sys.stderr)
            return 1
    paths = {name: root / RECORDS / f"peer-{name}.json" for name in PEERS}
    try:
        cases = load()
        for name in names:
            write_record(measure(PEERS[name], cases, digest()), paths[name])
        records = [read_record(path) for path in paths.values() if path.exists()]
        rows = readings(records, cases)
    except (ImportError, PackageNotFoundError) as error:
        session = f"peers(peer='{PEERS[name].package}')"
        print(f'--peer {name}: {error}; `nox -s "{session}"` installs what it needs', file=sys.stderr)
        return 1
    except (VectorError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    texts = table(records), json.dumps(rows, indent=1) + "\n", page([Measured(**each) for each in rows])
    for path, text in zip(PAGES, texts, strict=True):
        write_text(root / path, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
