"""Studies: what is compared, that a broken one goes on, and that what is told apart is different."""

import csv
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import my_routers.nearest
import numpy as np
import pytest

from moespec import cli
from moespec.models.errors import RunError
from moespec.training.commandline.parse import parse
from moespec.training.commands import study as command
from moespec.training.commands.study import combinations, entries
from moespec.training.configuration.config import Config
from moespec.training.loop.runlog import read_log
from moespec.training.reports.cost import aligned
from moespec.training.study import figures, outcome, results, statistics
from moespec.training.study.outcome import right_of
from moespec.training.study.results import FIXED, latex, summarised
from moespec.training.study.statistics import differences, pareto, sentences
from moespec.version import version

OWN = f"{my_routers.nearest.__name__}:ROUTER"
TOP = "router=softmax_token_choice,capacity_factor=2.0"


def test_entries() -> None:
    base = replace(Config(), training=replace(Config().training, steps=7))
    texts = [OWN, "soft_moe", "dense", "two: --router hash --model.router-options.hashes 2", "mixer:--model mixer_tiny"]
    found = entries(texts, base)
    assert list(found) == ["nearest", "soft_moe", "dense", "two", "mixer"]
    assert found["nearest"].model.router == OWN
    assert found["soft_moe"].model.router == "soft_moe"
    assert found["dense"].model.moe == "none"
    assert found["two"].model.router_options.changed() == {"hashes": 2}
    assert found["mixer"].model.name == "mixer_tiny"
    assert {config.training.steps for config in found.values()} == {7}


def test_a_grid(tmp_path: Path) -> None:
    """Each combination, named by its values; an option of two sections by all of its name."""
    grid = 'data = {flip = [true, false], transform = ["a.b:c"]}\nmodel.width = [-1e-9]\ntext.width = [32, 64]'
    (tmp_path / "grid.toml").write_text(grid)
    first, _, _, last = combinations(tmp_path / "grid.toml", Config())
    name = "flip=True,transform=a.b_c,model.width=-1e-09,text.width=32"
    assert first.startswith(f"{name}: --data.flip --data.transform=a.b")
    assert last.endswith(" --data.no-flip --data.transform=a.b:c --model.width=-1e-09 --text.width=64")


GRIDS = {
    "schedule.peek = [1.0]": "grid: peek=1.0: --schedule.peek=1.0: unknown option; did you mean --schedule.peak, --schedule.end",
    "schedule.peak = []": "grid.toml: schedule.peak=[]: expected a list of values, as in schedule.peak = [1, 2]",
    "training.steps = [[1, 2]]": "grid.toml: training.steps=[[1, 2]]: expected a list of values",
    "training.steps = [5, 'many']": "grid: steps=many: training.steps='many': expected an integer",
    "model.router_options.hashes = [2]": "grid: hashes=2: model.router_options.hashes=2",
    "training.seed = [1, 2]": "grid: seed=1: training.seed=1: a study sets its own seeds; use --seeds N",
    "training.steps = [5, 5]": "grid: steps=5: duplicate entry 'steps=5'",
    f"data.path = ['{'x' * 200}']": "grid: path=xxx",
    f"training = {{steps = {[*range(1, 1000)]}, batch = {[*range(1, 1000)]}}}": "998001 combinations, expected 1 to 100",
    "": "grid.toml: the lists have 0 combinations",
    "experts = [2, 4]\nmodel.experts = [2, 4]": "grid.toml: experts: the file sets this option twice",
}


@pytest.mark.parametrize("grid", GRIDS)
def test_a_wrong_grid_is_an_error_before_anything_trains(tmp_path: Path, grid: str, said) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "grid.toml").write_text(grid)
    assert GRIDS[grid] in said(f"study --grid {tmp_path / 'grid.toml'} --out {tmp_path / 'out'}".split(), 2)
    assert "grid='nope.toml': no such file, expected a TOML" in said(["study", "--grid", "nope.toml", "--out", "x"], 2)
    assert "study: expected at least one entry; set --routers" in said(["study", "--out", str(tmp_path / "out")], 2)
    assert not (tmp_path / "out").exists()


def study(random: np.random.Generator, gaps: list[float], *, seeds: int = 5, images: int = 500, of_seed: float = 0.3):  # type: ignore[no-untyped-def]
    """Which images each entry is right on: some are harder than others, some seeds are worse than others."""
    hardness = 2 * random.standard_normal(images)
    right = {}
    for number, gap in enumerate(gaps):
        skill = 2.0 + gap + of_seed * random.standard_normal((seeds, 1))
        right[f"e{number}"] = skill + hardness + random.logistic(size=(seeds, images)) > 0
    return right


def test_what_is_the_same_is_told_apart_one_time_in_twenty() -> None:
    """Of 60 studies of four entries that are equally good, those that tell any pair apart."""
    random = np.random.default_rng(3)
    wrong = sum(any(one.sure for one in differences(study(random, [0.0] * 4, seeds=3))) for _ in range(60))
    assert wrong <= 0.05 * 60 + 3 * np.sqrt(60 * 0.05 * 0.95)


def test_what_is_different_is_told_apart() -> None:
    random = np.random.default_rng(1)
    found = [differences(study(random, [1.0, 0.0], seeds=5)) for _ in range(40)]
    assert sum(one[0].sure and one[0].first == "e0" for one in found) >= 38
    truth = np.mean([one[0].difference for one in found])
    assert sum(one[0].low < truth < one[0].high for one in found) >= 34


def test_entries_are_compared_on_the_same_images_and_seeds() -> None:
    """One that is right wherever the other is, and on a few more images with each seed, is better for sure."""
    random = np.random.default_rng(0)
    worse = study(random, [0.0], seeds=4, images=1000)["e0"]
    better = worse.copy()
    better[:, np.flatnonzero(~worse.any(axis=0))[:30]] = True
    (one,) = differences({"worse": worse, "better": better})
    assert one.sure
    assert one.first == "better"
    assert one.difference == pytest.approx(better.mean() - worse.mean())
    assert one.high - one.low < 0.03, "errors that both make add nothing"
    (same,) = differences({"a": worse, "b": worse.copy()})
    assert (same.low, same.high, same.sure) == (0.0, 0.0, False)


def test_pareto() -> None:
    points = {"slow": (9, 0.9), "fast": (1, 0.5), "worse": (2, 0.5), "middle": (3, 0.7), "beaten": (4, 0.6)}
    assert pareto(points) == ["fast", "middle", "slow"]


def test_sentences() -> None:
    a, b, c = (statistics.Difference(*one) for one in [("a", "b", 0.02, 0.01, 0.03), ("a", "c", 0.03, 0.02, 0.04),
                                                        ("b", "c", 0.01, -0.01, 0.03)])  # fmt: skip
    assert sentences([a, b, c], seeds=5, images=100) == [
        "2 of the 3 pairs differ significantly (95 % confidence for all pairs simultaneously, 5 seeds and 100 images).",
        "a is better than b (by 1.0 to 3.0 points), c (by 2.0 to 4.0 points).",
    ]


@pytest.mark.parametrize("at", [[1.0], [1.0] * 30, np.random.default_rng(0).random(17)])
def test_no_text_of_a_figure_lies_on_another_or_leaves_the_figure(monkeypatch, at) -> None:  # type: ignore[no-untyped-def]
    """As the files have it: names of points that are equal or not, and a long measure."""
    from matplotlib.text import Text

    original = Text.draw

    def noted(text: Text, renderer) -> None:  # type: ignore[no-untyped-def]
        original(text, renderer)
        if text.get_text() and text.get_visible():
            drawn.setdefault(text.figure, {})[text] = Text.get_window_extent(text, renderer)

    monkeypatch.setattr(Text, "draw", noted)
    monkeypatch.setattr(figures, "COSTS", {"operations": figures.COSTS["operations"]})
    drawn, of = {}, {f"sparsity_constrained_expert_choice,width={i}": 1e9 * x for i, x in enumerate(at)}
    each = {name: {"accuracy": x / 4e9, "spread": 0.02, "quartiles": {}, "operations": x} for name, x in of.items()}
    measure = "few_shot_of_the_photographs_of_animals/shots_10/accuracy"
    points = [(name, seed, step, x / 4e9 + seed / 10) for name, x in of.items() for seed in (0, 1) for step in (1, 9)]
    lines = [(name, seed, step, f"evaluation/{measure}", value) for name, seed, step, value in points]
    figures.draw({"entries": each, "pareto": {"operations": list(of)[:1]}, "measure": measure, "seeds": [0, 1]}, lines)
    for figure, texts in drawn.items():
        scale = 72 / figure.dpi  # a PDF has 72 dots an inch
        (width, height), right = figure.bbox.size * scale, figure.axes[0].bbox.x1 * scale
        assert len(texts) >= len(of) + 4, "names, axes and some ticks"
        for text, box in texts.items():
            assert box.extents == pytest.approx(np.clip(box.extents, 0, [width, height] * 2))
            assert text.get_text() not in of or box.x0 > right
            assert [a for a, there in texts.items() if a is not text and there.overlaps(box)] == [], text
    band = figure.axes[0].collections[0].get_paths()[0].vertices  # of the first entry; its seeds are 10 points apart
    edges = np.unique(band[band[:, 0] == 1, 1]) - 25 * at[0] - 5
    assert edges == pytest.approx([-(50**0.5), 50**0.5]), "one standard deviation"


def test_the_sweep_of_the_documentation() -> None:
    """The page has the grid and the command that made the record, and what that printed."""
    root = Path(__file__).parents[3]
    page, folder = (root / "docs/evaluation.md").read_text(), root / "benchmarks/sweep"
    record, grid = json.loads((folder / "results.json").read_text()), folder / "grid.toml"
    assert f"```toml\n{grid.read_text()}```" in page
    (line,) = re.findall(r"\$ moespec (study --grid .*)", page.replace("\\\n", ""))
    words = parse("study", command.StudyArguments, line.split()[1:], settings=Config())
    seeds, swept = len(record["seeds"]), combinations(grid, words.settings)
    assert ([*entries([*words.routers, *swept], words.settings, swept)], words.seeds) == ([*record["entries"]], seeds)
    pairs = [statistics.Difference(*list(one.values())[:5]) for one in record["differences"]]
    assert "\n".join([aligned(results.rows(record)), *sentences(pairs, seeds=seeds, images=record["images"])]) in page


def test_a_table_of_latex_escapes() -> None:
    record = {"entries": {}, "failed": {"a_1": {}}, "measure": r"a&b%c$d#e_f{g}h~i^j\k"}
    name = r"a\&b\%c\$d\#e\_f\{g\}h\textasciitilde{}i\textasciicircum{}j\textbackslash{}k"
    assert f"\n & {name} $\\pm$ spread & training & " in latex(record)
    assert "\na\\_1 & failed & " in latex(record)


class Stopped(Exception):
    """In place of a power cut."""


@pytest.fixture(scope="module")
def flags(runs, tmp_path_factory) -> list[str]:  # type: ignore[no-untyped-def]
    grid = tmp_path_factory.mktemp("grid") / "grid.toml"
    grid.write_text('router = ["softmax_token_choice"]\nmodel.router_options.capacity_factor = [2.0]\n')
    return ["study", "--routers", "soft_moe", "--grid", str(grid), "--seeds", "2", "--backend", "jax", *runs.flags]


@pytest.fixture(scope="module")
def whole(flags: list[str], tmp_path_factory) -> Iterator[Path]:  # type: ignore[no-untyped-def]
    out = tmp_path_factory.mktemp("study") / "out"
    assert cli.main([*flags, "--out", str(out)]) == 0
    return out


def compared(out: Path) -> dict:
    """The results without what a clock decides."""
    results = json.loads((out / "results.json").read_text())
    kept = ("accuracy", "loss", "right", "images", "step", *FIXED, "training_operations", "dropped", "imbalance")
    runs = [(name, seed, one[key]) for name, of in results["runs"].items() for seed, one in of.items() for key in kept]
    return {"runs": runs, **{key: results[key] for key in ("seeds", "images", "differences", "sentences")}}


def test_a_study(whole: Path) -> None:
    results = json.loads((whole / "results.json").read_text())
    assert list(results["entries"]) == ["soft_moe", TOP]
    assert results["seeds"] == [0, 1]
    assert results["images"] == 355
    assert list(results["pareto"]) == ["training_operations", "operations", "training_milliseconds", "milliseconds"]
    steps = list(csv.reader((whole / "steps.csv").read_text().splitlines()))
    assert results["version"] == results["runs"][TOP]["1"]["version"] == version()
    for name, runs in results["runs"].items():
        for seed, one in runs.items():
            run = whole / "runs" / f"{name}-seed{seed}"
            last, (_, *later) = read_log(run, "evaluation")[-1], read_log(run, "train")
            assert one["accuracy"] == last["accuracy"] == right_of(one).mean()
            rate = np.median([line["images_per_second"] for line in later])  # without that of the compilation
            assert one["training_milliseconds"] == pytest.approx(1e3 / rate)
            low, high = np.quantile([1e3 / line["images_per_second"] for line in later], [0.25, 0.75])
            assert one["quartiles"]["training_milliseconds"] == pytest.approx([low, high])
            assert 0 < one["quartiles"]["milliseconds"][0] <= one["milliseconds"] <= one["quartiles"]["milliseconds"][1]
            curve = [float(line[4]) for line in steps if line[:2] == [name, seed] and line[3] == "evaluation/accuracy"]
            assert curve == [line["accuracy"] for line in read_log(run, "evaluation")]
            assert one["training_operations"] == 3 * 12 * 16 * one["operations"]
        accuracies = [one["accuracy"] for one in runs.values()]
        entry = results["entries"][name]
        assert entry["accuracy"] == pytest.approx(np.mean(accuracies))
        assert entry["spread"] == pytest.approx(np.std(accuracies, ddof=1))
        assert accuracies[0] != accuracies[1]
        ranges = [one["quartiles"]["milliseconds"] for one in runs.values()]
        assert entry["quartiles"]["milliseconds"] == [min(low for low, _ in ranges), max(high for _, high in ranges)]
    page = (whole / "index.html").read_text()
    assert all(sentence in page for sentence in results["sentences"])
    given = f"{TOP}: --router=softmax_token_choice --model.router_options.capacity_factor=2.0"
    assert f"<code>{given}</code></summary>" in page
    assert "router=<wbr>softmax_<wbr>token_<wbr>choice,<wbr>capacity_<wbr>factor=<wbr>2.<wbr>0</th>" in page
    names = [*(f"cost-{cost}" for cost in figures.COSTS), "steps-loss", "steps-measure"]
    starts = {path.name: path.read_bytes()[:5] for path in (whole / "figures").iterdir()}
    assert starts == {f"{name}.{kind}": of for name in names for kind, of in (("pdf", b"%PDF-"), ("svg", b"<?xml"))}
    assert page.count("data:image/svg+xml;base64,") == 6
    assert latex(results) == (whole / "table.tex").read_text()


def test_a_broken_study_goes_on(whole: Path, flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped before its second run and in its third: what was finished is not trained again, the results are the same."""
    trained: list[str] = []
    train_command, make, out = command.train_command, command.outcome.make, ["--out", str(tmp_path / "out")]

    def counted(config, *, run, resume, override):  # type: ignore[no-untyped-def]
        if len(trained) == 1:
            trained.append("stopped")
            raise Stopped
        trained.append(Path(run).name)
        train_command(config, run=run, resume=resume, override=override)

    def broken(loaded, run, path):  # type: ignore[no-untyped-def]
        if run.name == "soft_moe-seed1" and trained.count("soft_moe-seed1") == 1:
            raise Stopped
        make(loaded, run, path)

    monkeypatch.setattr(results, "draw", lambda *_: {})
    monkeypatch.setattr(command, "train_command", counted)
    monkeypatch.setattr(command.outcome, "make", broken)
    for _ in range(2):
        with pytest.raises(Stopped):
            cli.main([*flags, *out])
    assert cli.main([*flags, *out]) == 0
    assert trained == ["soft_moe-seed0", "stopped", f"{TOP}-seed0", "soft_moe-seed1", "soft_moe-seed1", f"{TOP}-seed1"]
    assert compared(tmp_path / "out") == compared(whole)
    assert cli.main([*flags, *out]) == 0
    assert len(trained) == 6


def test_an_entry_that_fails_is_named_and_the_others_go_on(whole, flags, tmp_path, monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    """Called twice; of the others nothing is trained, as they are finished."""

    def diverges(config, *, run, resume, override):  # type: ignore[no-untyped-def]
        raise RunError(f"{Path(run).name} diverged")

    monkeypatch.setattr(results, "draw", lambda *_: {})
    monkeypatch.setattr(command, "train_command", diverges)
    out = shutil.copytree(whole, tmp_path / "out")
    for _ in range(2):
        assert cli.main([*flags[:2], "bad: --router switch", *flags[2:], "--out", str(out)]) == 2
        said = capsys.readouterr()
        assert "bad failed; repeat the command to retry" in said.err
    assert re.search(r"\nbad +failed *\n(.*\n)+bad failed with seed 1: bad-seed1 diverged.\n", said.out)
    assert json.loads((out / "results.json").read_text())["failed"]["bad"]["0"] == "bad-seed0 diverged"
    assert compared(out)["differences"] == compared(whole)["differences"], "of the others"
    assert "bad,1,,,,,,,,,,,,,,bad-seed1 diverged" in (out / "results.csv").read_text()
    assert "bad failed with seed 0: bad-seed0 diverged." in (out / "index.html").read_text()


def test_a_damaged_outcome_is_named(whole: Path, flags: list[str], tmp_path: Path, said) -> None:  # type: ignore[no-untyped-def]
    path = shutil.copytree(whole, tmp_path / "out") / "outcomes" / f"{TOP}-seed0.json"
    content = path.read_bytes()
    later = {"sha256", "version", "training_operations", "quartiles"}
    older = {key: value for key, value in json.loads(content).items() if key not in later}
    path.write_text(json.dumps(older))
    trained = {"training_operations": json.loads(content)["training_operations"]}
    assert outcome.read(path) == older | trained, "as version 0.1 wrote it"
    times = summarised({"top": {0: older | trained}}, {})["entries"]["top"]["quartiles"]["milliseconds"]
    assert times == [older["milliseconds"]] * 2
    pairs = [{"quartiles": {"milliseconds": pair}} for pair in (1, [1], ["1", 2])]
    for wrong in ({"milliseconds": None}, {"right": "????"}, {"right": "AAAA"}, {"quartiles": [1]}, *pairs):
        path.write_text(json.dumps({**older, **wrong}))
        message = said([*flags, "--out", str(tmp_path / "out")], 2)
        assert re.search(r"=2\.0-seed0\.json: .*\. Delete this file; the same command rebuilds it", message)


def test_what_cannot_be_trained_is_said_first(whole: Path, flags: list[str], tmp_path: Path, said) -> None:  # type: ignore[no-untyped-def]
    """A folder keeps its study, and entries are checked before the first is trained."""
    longer, out = [*flags, "--out", str(whole), "--training.steps", "24"], tmp_path / "out"
    assert "belongs to another study: training.steps is 12 there, 24 here" in said(longer, 2)
    wrong = [*flags, "--out", str(out)]
    wrong.insert(3, "odd: --router base --model.group-images 3")
    assert "entry odd: training.batch gives 16 images at a time" in said(wrong, 2)
    said([*flags, "--out", str(out), "--seeds", "0"], 2)
    assert not out.exists()


def test_a_measure_of_an_evaluation_is_compared(tmp_path: Path, runs, said) -> None:  # type: ignore[no-untyped-def]
    """Of runs without a head, one; what does not exist is an error before it. The same numbers as of four runs make a page."""
    own, out = tmp_path / "own.toml", tmp_path / "out"
    own.write_text('[evaluation.shots]\nkind = "few_shot"\nshots = [2]\nseeds = 1\nevery = 1\n')
    words = ["study", "--routers", OWN, "--config", str(own), *runs.flags, "--objective", "moco", "--seeds", "1"]
    words += f"--training.steps 2 --moco.hidden 8 --moco.output 4 --data.flip --out {out} --backend torch".split()
    wrong = said([*words, "--measure", "shots/shots_10/accuracy"], 2)
    assert "measure='shots/shots_10/accuracy': expected one of shots/shots_2/acc" in wrong
    assert "'moco' has no head" in said(words, 2)
    assert not out.exists()
    name = "shots/shots_2/accuracy"
    assert name in said([*words, "--measure", name])
    found = json.loads((out / "results.json").read_text())
    (run,) = found["runs"]["nearest"].values()
    first, last = (line["shots_2"] for line in read_log(out / "runs" / "nearest-seed0", "evaluation/shots"))
    assert run["evaluations"] == {name: last["accuracy"]} != {name: first["accuracy"]}, "without l2 and single seeds"
    assert found["entries"]["nearest"]["accuracy"] == last["accuracy"]
    values = {"a": [0.5, 0.6, 0.7], "b": [0.31, 0.4, 0.5]}
    outcomes = {e: {s: {**run, "evaluations": {name: v}} for s, v in enumerate(of)} for e, of in values.items()}
    summary = summarised(outcomes, {}, name)
    results.write(tmp_path, summary, {})
    confident = "(95 % confidence for all pairs simultaneously, 3 seeds)"
    assert summary["sentences"][0] == f"The two entries differ significantly {confident}."
    assert re.search("(scroll entries.*){2}Student", (tmp_path / "index.html").read_text(), re.S), "both tables"
    assert (tmp_path / "results.csv").read_text().splitlines()[4].endswith(",0.31,")


def test_intervals_of_seeds_alone() -> None:
    """Of four entries that are alike few studies tell any apart; those that always differ by the same say nothing."""
    random = np.random.default_rng(0)
    wrong = [
        any(one.sure for one in statistics.differences_of_seeds(dict(zip("abcd", values, strict=True))))
        for values in random.standard_normal((400, 4, 3)).tolist()
    ]
    assert 0.01 < np.mean(wrong) < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 400)
    (better,) = statistics.differences_of_seeds({"a": [1, 1.2, 1.3], "b": [0.1, 0.2, 0.3]})
    (alike,) = statistics.differences_of_seeds({"a": [0.2, 0.3, 0.4], "b": [0.1, 0.2, 0.3]})
    assert (better.first, better.sure, alike.sure) == ("a", True, False)
    half = 4.3027 * np.std([0.9, 1.0, 1.0], ddof=1) / np.sqrt(3)
    assert better.high - better.difference == pytest.approx(half, rel=1e-4)
    assert statistics.differences_of_seeds({"a": [1.0], "b": [2.0]}) == []
