"""Run the suite on installed peers and write the pages of all records.

Writes `docs/peers.md`, the measured readings of the ambiguity ledger (`spec/implementations/measured.json`), and
`docs/implementations.md`, which combines these readings with the ledger.
"""

import argparse
import json
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from moespec.conformance.format import VectorError
from moespec.conformance.peers import PEERS
from moespec.conformance.peers.measure import measure, read_record, readings, write_record
from moespec.conformance.peers.table import table
from moespec.conformance.suite import VECTORS, digest, load
from moespec.models.files import write_atomically
from moespec.spec.implementations.positions import Measured
from moespec.spec.implementations.table import page

RECORDS, MEASURED = "conformance/reports", "spec/implementations/measured.json"


def main(arguments: list[str] | None = None) -> int:
    """Return exit status 0 if the pages were written, even if cases failed, and 1 if a peer could not run."""
    parser = argparse.ArgumentParser(prog="python -m moespec.conformance.peers", description=__doc__)
    words = f"peer to run (repeatable): {', '.join(PEERS)}; without --peer, only rewrite the pages from the records"
    parser.add_argument("--peer", action="append", choices=list(PEERS), default=[], metavar="NAME", help=words)
    parser.add_argument("--root", type=Path, default=Path(), help="folder of the checkout (default: current folder)")
    parser.add_argument("--vectors", type=Path, default=VECTORS, help="vector folder (default: the shipped vectors)")
    options = parser.parse_args(arguments)
    records, docs, measured = (options.root / name for name in (RECORDS, "docs", MEASURED))
    for folder in (records, docs, measured.parent):
        if not folder.is_dir():
            print(f"--root: folder {str(folder)!r} does not exist; expected a checkout", file=sys.stderr)
            return 1
    try:
        cases = load(options.vectors)
        for name in options.peer:
            write_record(measure(PEERS[name], cases, digest(options.vectors)), records / f"peer-{name}.json")
        paths = {name: records / f"peer-{name}.json" for name in PEERS}
        found = [read_record(path) for path in paths.values() if path.exists()]
        rows = readings(found, cases)
    except (ImportError, PackageNotFoundError) as error:
        session = f"peers(peer='{PEERS[name].package}')"
        print(f'--peer {name}: {error}; run `nox -s "{session}"` to install the requirements', file=sys.stderr)
        return 1
    except (VectorError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    texts = {
        docs / "peers.md": table(found),
        measured: json.dumps(rows, indent=1) + "\n",
        docs / "implementations.md": page([Measured(**each) for each in rows]),
    }
    for path, text in texts.items():
        write_atomically(path, text.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
