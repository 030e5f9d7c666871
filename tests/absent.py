"""Programs that run in a process of their own where some packages are not there."""

import subprocess
import sys
import textwrap
from collections.abc import Collection

START = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if any(f"{name}.".startswith(f"{absent}.") for absent in ABSENT):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""


def run_without(absent: Collection[str], program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the text of a program; what it imports is not there if `absent` has its name or that of its package."""
    command = [sys.executable, "-c", f"ABSENT = {[*absent]!r}\n{START}{textwrap.dedent(program)}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
