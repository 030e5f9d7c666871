"""What CI services read: the badge of shields.io, the action; and the version of the suite."""

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
ACTION = ROOT / ".github/actions/conformance/action.yml"


# The action.


def steps():
    return {step["name"]: step for step in yaml.safe_load(ACTION.read_text())["runs"]["steps"]}


def check(folder, **inputs):
    """Runs the step that checks, as GitHub does; its exit status."""
    action = yaml.safe_load(ACTION.read_text())
    values = {name: entry["default"] for name, entry in action["inputs"].items()} | inputs
    step = steps()["Check"]
    environment = {
        name: values[text.removeprefix("${{ inputs.").removesuffix(" }}")] for name, text in step["env"].items()
    }
    environment |= {"GITHUB_STEP_SUMMARY": str(folder / "summary.md")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    made = subprocess.run(
        (shutil.which("bash"), "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]),
        cwd=folder,
        env={**os.environ, **environment, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    return made.returncode, made.stdout + made.stderr


def test_the_action_writes_reports_and_fails_when_a_case_fails(tmp_path):
    (tmp_path / "double.py").write_text(
        "from moespec.backends.numpy import *\nfrom moespec.backends import numpy\n"
        "def z_loss(logits):\n    return 2 * numpy.z_loss(logits)\n"
    )
    arguments = '--algorithm z_loss\n--dtype "f64, f32" --class values'
    status, printed = check(tmp_path, target="double", arguments=arguments)
    assert status == 1, printed
    written = {path.name for path in (tmp_path / "moespec-conformance").iterdir()}
    assert written >= {"report.json", "report.html", "junit.xml", "badge.svg", "shields.json"}
    assert "failed" in (tmp_path / "summary.md").read_text()
    content, shield = (
        json.loads((tmp_path / f"moespec-conformance/{n}.json").read_text()) for n in ("report", "shields")
    )
    assert (content["target"], content["version"]) == ("double", version("moespec"))
    message = f"{content['cases_passed']} of {content['cases_in_all']} cases passed, {content['failed']} failed"
    assert shield == {"schemaVersion": 1, "label": "moespec conformance", "message": message, "color": "#b3261e"}


def test_the_action_passes_when_all_pass(tmp_path):
    status, printed = check(tmp_path, target="moespec.backends.numpy", arguments="--algorithm z_loss", output="a b")
    assert status == 0, printed
    assert (tmp_path / "a b/junit.xml").exists()


def test_the_action_takes_no_input_as_code_and_installs_what_it_is_part_of():
    scripts = [step["run"] for step in steps().values() if "run" in step]
    assert not any("${{" in script for script in scripts)
    assert (ACTION.parent / "../../../pyproject.toml").resolve() == ROOT / "pyproject.toml"
    assert "$GITHUB_ACTION_PATH/../../.." in steps()["Install"]["run"]
