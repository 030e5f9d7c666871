"""Pack the vectors into an archive for programs in any language. Run `nox -s vectors` or `python -m moespec.conformance.archive build`.

vectors-VERSION/README.md, LICENSE     description and license
vectors-VERSION/index.json             every case: id, class, flags, revision, sha256 of the manifest and of the tensors
vectors-VERSION/suite.json, vectors/   the suite, described by schema.json and flags.json
vectors-VERSION/readers/               readers and examples in C and JavaScript
"""

import gzip
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

from moespec.conformance.format import VectorError
from moespec.conformance.manifest import SCHEMA
from moespec.conformance.suite import digest, verify
from moespec.models.files import read_file, write_atomically
from moespec.version import version

__all__ = ["archive", "check_promise", "index", "write"]


def index(vectors: Path) -> dict[str, Any]:
    """Returns an entry for each case, sorted by id. Raises VectorError if the vectors differ from `suite.json`."""
    algorithms = json.loads(read_file(vectors.parent / "suite.json"))["algorithms"]
    cases = []
    for path in verify(vectors):
        manifest = json.loads(read_file(path))
        own, file = algorithms[manifest["algorithm"]], f"vectors/{manifest['id']}"
        entry = {**{name: manifest[name] for name in ("id", "class", "flags")}, "revision": own["revision"]}
        entry["manifest"] = {"file": f"{file}.json", "sha256": own["sha256"][path.stem]}
        entry["tensors"] = None
        if "tensors" in manifest:
            entry["tensors"] = {"file": f"{file}.safetensors", "sha256": manifest["tensors"]["sha256"]}
        cases.append(entry)
    return {"version": version(), "schema": SCHEMA, "suite": digest(vectors), "cases": cases}


def archive(root: Path) -> bytes:
    """Returns the archive of a checkout; equal trees give equal bytes. Raises VectorError if vectors were modified."""
    suite = root / "conformance"
    contents = {"index.json": (json.dumps(index(suite / "vectors"), indent=1) + "\n").encode()}
    contents |= {"LICENSE": read_file(root / "LICENSE"), "README.md": read_file(suite / "readers/README.md")}
    patterns = ("suite.json", "schema.json", "flags.json", "readers/*.[ch]", "readers/*.mjs", "vectors/*/[!.]*")
    paths = [path for pattern in patterns for path in suite.glob(pattern)]
    contents |= {path.relative_to(suite).as_posix(): read_file(path) for path in paths}
    packed = io.BytesIO()
    with (
        gzip.GzipFile("", "wb", fileobj=packed, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for name, content in sorted(contents.items()):
            entry = tarfile.TarInfo(f"vectors-{version()}/{name}")  # no owner, time 0
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def check_promise(root: Path, release: str) -> None:
    """Raises VectorError if a patch release such as 0.3.2 changes the suite of its minor release 0.3.0 (tag v0.3.0)."""
    minor, _, patch = release.rpartition(".")
    command = ["git", "-C", str(root), "show", f"v{minor}.0:conformance/suite.json"]
    shown = subprocess.run(command, capture_output=True, check=False) if patch != "0" else None
    if shown and (shown.returncode or shown.stdout != read_file(root / "conformance/suite.json")):
        reason = shown.stderr.decode().strip() or "a patch release must not change vectors"
        raise VectorError(f"version {release}: suite.json differs from the tag v{minor}.0 ({reason})")


def write(root: Path, folder: Path) -> Path:
    """Writes the archive of a checkout and returns its path. Raises VectorError like `archive` and `check_promise`."""
    check_promise(root, version())
    path = folder / f"vectors-{version()}.tar.gz"
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(path, archive(root))
    return path


if __name__ == "__main__":
    try:
        print(write(Path(), Path(sys.argv[1])))
    except (VectorError, OSError) as error:
        sys.exit(f"moespec.conformance.archive: {error}")
