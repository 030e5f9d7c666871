"""The committed results of the benchmarks and runs: of every router, and what the pages say of them."""

import importlib
import json
import re
import tomllib
from pathlib import Path

import pytest

from moespec.spec.routers import ROUTERS

ROOT = Path(__file__).parents[1]
RESULTS, RUNS = ROOT / "benchmarks" / "results", ROOT / "benchmarks" / "runs"
RECIPES = ROOT / "training" / "recipes"


@pytest.mark.parametrize("name", ["layers-tpu", "layers-jax-cpu", "layers-torch-cpu"])
def test_layers_of_every_router_were_measured(name):
    """`nox -s tpu` compares with the committed figures, and has nothing to compare a new router with until they are."""
    result = json.loads((RESULTS / f"{name}.json").read_text())
    rows = result["rows"] if name == "layers-tpu" else result["figures"]["layers"]
    assert not {"dense", *ROUTERS} - set(rows)


def test_a_figure_of_another_project_needs_two_runs_that_agree(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    speed = importlib.import_module("speed")
    runs = {"before": {"hash": 1.0, "a": 1.0, "b": 1.0}, "figures": {"hash": 2.0, "a": 1.09, "b": 1.12, "c": 1.0}}
    rows = {run: {"layers": {name: {"times_dense": one} for name, one in of.items()}} for run, of in runs.items()}
    (tmp_path / "two.json").write_text(json.dumps(rows))
    monkeypatch.setattr(speed, "RESULTS", tmp_path)
    result = speed.read("two")
    assert set(result["figures"]["layers"]) == {"hash", "a"}
    assert result["left_out"].endswith(": `b` (1.00 and 1.12), `c` (1.00)")


def test_accuracies_on_pages_are_those_of_committed_runs():
    """A run named for a recipe has its settings; our recipes and two pages give accuracies with two decimals."""
    row = re.compile(r"^\| `(.+)` \| (\d?\d\.\d\d) \| \[.+\]\(\.\./\.\./(.+)\) \|$", re.M)
    rows = row.findall((RUNS / "README.md").read_text())
    assert sorted(name for name, _, _ in rows) == sorted(path.name for path in RUNS.iterdir() if path.is_dir())
    for name, figure, _ in rows:
        last = json.loads((RUNS / name / "metrics.jsonl").read_text().splitlines()[-1])
        config = tomllib.loads((RUNS / name / "config.toml").read_text())
        accuracy = last.get("shots_10", last)["accuracy"]
        assert (f"{100 * accuracy:.2f}", last["step"]) == (figure, config["training"]["steps"]), name
        recipe = RECIPES / f"{name.partition('-')[0]}.toml"
        for table, settings in tomllib.loads(recipe.read_text()).items() if recipe.is_file() else ():
            assert settings.items() <= config[table].items(), name
    # The recipes study_* give the paper's.
    pages = [ROOT / "docs/training.md", ROOT / "docs/photos.md", *RECIPES.glob("[!s]*.toml")]
    texts = {str(page.relative_to(ROOT)): page.read_text() for page in pages}
    figures = {(page, figure) for page, text in texts.items() for figure in re.findall(r"\b\d\d\.\d\d\b", text)}
    assert figures == {(page, figure) for _, figure, page in rows if len(figure) == 5}


def test_the_coverage_on_the_page_is_what_was_measured():
    rooms = json.loads((RESULTS / "coverage.json").read_text())["figures"]
    rows = re.findall(r"^\| `(\w+)` \| ([\d ]+) \| (\d+) % \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    expected = [(room, n["statements"], round(100 * n["covered"] / n["statements"])) for room, n in rooms.items()]
    assert [(room, int(count.replace(" ", "")), int(share)) for room, count, share in rows] == expected
