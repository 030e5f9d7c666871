"""Every Python block of the README runs, as those of docs/ do when the site is made; links of both lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_python_block_runs(number, tmp_path, monkeypatch):
    monkeypatch.delenv("MOESPEC_BACKEND", raising=False)
    monkeypatch.chdir(tmp_path)
    exec(compile(BLOCKS[number], f"README.md, block {number}", "exec"), {"__name__": "__main__"})


def test_every_link_to_a_file_leads_somewhere():
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name}: {target}"
