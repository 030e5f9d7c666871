"""The workflows run the sessions that `.ci/run` runs, and the hooks before a commit the ruff that CI runs."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())["jobs"]["nox"]


def test_the_workflow_runs_what_main_must_pass():
    commands = re.findall(r"^run -s (.*)$", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert "checks" in commands
    assert WORKFLOW["strategy"]["matrix"]["session"] == commands
    assert WORKFLOW["steps"][-1]["run"] == "nox -s ${{ matrix.session }}"


def test_the_hooks_run_the_linters_of_ci():
    repositories = {
        each["repo"]: each["rev"] for each in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    }
    constraints = (ROOT / "constraints.txt").read_text()
    for name, owner in (("ruff", "astral-sh/ruff-pre-commit"), ("codespell", "codespell-project/codespell")):
        assert f"{name}=={repositories[f'https://github.com/{owner}'].removeprefix('v')}\n" in constraints
