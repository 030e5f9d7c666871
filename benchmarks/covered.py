"""Run tests and write the statement coverage of each top-level folder to `benchmarks/results/coverage.json`.

    python benchmarks/covered.py [PYTEST ARGUMENT ...]

The default arguments are `-m fast`. The coverage excludes code that runs in subprocesses. `nox -s coverage` runs this script.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from record import write

ROOT = Path(__file__).parents[1]
ROOMS = ("spec", "backends", "models", "training", "conformance")
FOLDER = ROOT / "build" / "coverage"
COVERAGE = [sys.executable, "-m", "coverage"]
FILE = {"COVERAGE_FILE": str(FOLDER / "data")}


def counted() -> dict[str, dict[str, int]]:
    """Count all statements and the covered statements in each top-level folder."""
    result = FOLDER / "result.json"
    subprocess.run([*COVERAGE, "json", "-q", "-o", str(result)], cwd=ROOT, env={**os.environ, **FILE}, check=True)
    statements: Counter[str] = Counter()
    covered: Counter[str] = Counter()
    for name, file in json.loads(result.read_text())["files"].items():
        room = Path(name).parts[0]
        statements[room] += file["summary"]["num_statements"]
        covered[room] += file["summary"]["covered_lines"]
    return {room: {"statements": statements[room], "covered": covered[room]} for room in ROOMS}


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    tests = [*COVERAGE, "run", f"--source={','.join(ROOMS)}", "-m", "pytest", "-q", *(sys.argv[1:] or ["-m", "fast"])]
    subprocess.run(tests, cwd=ROOT, env={**os.environ, **FILE}, check=True)
    write("coverage", counted(), of_device=False)
