"""`python -m moespec.conformance.peers`: run the suite on peers that are installed, and write the table of all records."""

import argparse
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from moespec.conformance.engine.format import VectorError
from moespec.conformance.engine.suite import VECTORS, digest, load
from moespec.conformance.peers import PEERS
from moespec.conformance.peers.measure import measure, read_record, write_record
from moespec.conformance.peers.table import table
from moespec.conformance.report.report import write_text


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 0 when the table was written, whatever the peers compute; 1 when a peer could not be run."""
    parser = argparse.ArgumentParser(prog="python -m moespec.conformance.peers", description=__doc__)
    parser.add_argument(
        "--peer",
        action="append",
        choices=list(PEERS),
        default=[],
        metavar="NAME",
        help=f"run the suite on this (repeatable): {', '.join(PEERS)}; without it only the table is written",
    )
    parser.add_argument("--records", type=Path, default=Path("conformance/reports"), help="folder of the records")
    parser.add_argument("--table", type=Path, default=Path("docs/peers.md"), help="where the table is written")
    parser.add_argument("--vectors", type=Path, default=VECTORS, help="folder of the vectors (default: those shipped)")
    options = parser.parse_args(arguments)
    for option, folder in (("--records", options.records), ("--table", options.table.parent)):
        if not folder.is_dir():
            print(f"{option}: there is no folder {str(folder)!r}; the defaults are for a checkout", file=sys.stderr)
            return 1
    try:
        cases = load(options.vectors) if options.peer else []
        for name in options.peer:
            write_record(measure(PEERS[name], cases, digest(options.vectors)), options.records / f"peer-{name}.json")
        paths = {name: options.records / f"peer-{name}.json" for name in PEERS}
        records = [read_record(path) for path in paths.values() if path.exists()]
    except (ImportError, PackageNotFoundError) as error:
        print(f"--peer {name}: {error}; `nox -s \"peers(peer='{name}')\"` installs what it needs", file=sys.stderr)
        return 1
    except (VectorError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    write_text(options.table, table(records))
    return 0


if __name__ == "__main__":
    sys.exit(main())
