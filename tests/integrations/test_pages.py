"""The blocks of docs/torch-layer.md run beside the packages that they are about: `nox -s integrations`."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "torch-layer.md"
# Blocks of py, not python, need packages that the other tests do without; one without imports is not a whole program.
BLOCKS = [block for block in re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL) if "import " in block]
DECLARED = (Path(__file__).parents[1] / "torchvision_operators.py").read_text()


@pytest.mark.parametrize("block", BLOCKS, ids=[str(number) for number in range(len(BLOCKS))])
def test_block_runs(block, tmp_path):
    for package in set(re.findall(r"^(?:import|from) (\w+)", block, re.MULTILINE)):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: `nox -s integrations` runs this block")
    command = [sys.executable, "-c", DECLARED + block]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
