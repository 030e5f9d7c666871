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
from moespec.conformance.suite import VECTORS, digest, load
from moespec.spec.implementations.positions import Measured
from moespec.spec.implementations.table import page


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 0 when the table was written, whatever the peers compute; 1 when a peer could not be run."""
    parser = argparse.ArgumentParser(prog="python -m moespec.conformance.peers", description=__doc__)
    parser.add_argument(
        "--peer",
        action="append",
        choices=list(PEERS),
        default=[],
        metavar="NAME",
        help=f"run the suite on this (repeatable): {', '.join(PEERS)}; without it only what the records say is written",
    )
    parser.add_argument("--records", type=Path, default=Path("conformance/reports"), help="folder of the records")
    parser.add_argument("--table", type=Path, default=Path("docs/peers.md"), help="where the table is written")
    parser.add_argument(
        "--measured",
        type=Path,
        default=Path("spec/implementations/measured.json"),
        help="where the readings that peers were measured to take are written",
    )
    parser.add_argument(
        "--implementations",
        type=Path,
        default=Path("docs/implementations.md"),
        help="where the page of implementations is written",
    )
    parser.add_argument("--vectors", type=Path, default=VECTORS, help="folder of the vectors (default: those shipped)")
    options = parser.parse_args(arguments)
    written = {"--table": options.table, "--measured": options.measured, "--implementations": options.implementations}
    for option, folder in (("--records", options.records), *((name, path.parent) for name, path in written.items())):
        if not folder.is_dir():
            print(f"{option}: there is no folder {str(folder)!r}; the defaults are for a checkout", file=sys.stderr)
            return 1
    try:
        cases = load(options.vectors)
        for name in options.peer:
            write_record(measure(PEERS[name], cases, digest(options.vectors)), options.records / f"peer-{name}.json")
        paths = {name: options.records / f"peer-{name}.json" for name in PEERS}
        records = [read_record(path) for path in paths.values() if path.exists()]
        rows = readings(records, cases)
    except (ImportError, PackageNotFoundError) as error:
        print(
            f"--peer {name}: {error}; `nox -s \"peers(peer='{PEERS[name].package}')\"` installs what it needs",
            file=sys.stderr,
        )
        return 1
    except (VectorError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    write_text(options.table, table(records))
    write_text(options.measured, json.dumps(rows, indent=1) + "\n")
    write_text(options.implementations, page([Measured(**each) for each in rows]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
