"""The application from Python: `train` is `moespec train`, and a `Run` does what the commands do."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from moespec import training
from moespec.models.errors import Interrupted
from moespec.spec.errors import SpecError


def test_a_run_of_python_is_that_of_the_command(tmp_path, runs):
    whole, path = runs.whole("torch"), tmp_path / "x"
    stop = [lambda after: after.done == 5 and os.kill(os.getpid(), signal.SIGTERM)]
    with pytest.raises(Interrupted, match=r"\d of 12 steps are done and saved"):
        training.train(runs.config, run=path, backend="torch", hooks=stop)
    with pytest.raises(SpecError, match="unfinished; resume it with --resume, or choose another --run"):
        training.train(whole / "config.toml", run=path, training={"keep": 9})
    run = training.train(run=path, resume=True)  # with its own configuration
    for name in ("config.toml", "checkpoints/00000012/arrays.safetensors"):
        assert (path / name).read_bytes() == (whole / name).read_bytes()
    results, last = run.evaluate(knn=[5]), run.log("evaluation")[-1]
    assert (results["accuracy"], *results["evaluation/nearest neighbours"]) == (last["accuracy"], "neighbours_5")
    page = run.report().read_bytes()
    assert training.train(whole / "config.toml", run=path).report().read_bytes() == page  # finished: nothing is done
    (path / "report.html").unlink()
    assert "device-days" not in run.report().read_text()  # no record has the number of devices

    picture = run.predict(Path(__file__).parents[2] / "docs/routing.png", top=1)[0]
    shown = [repr(one) for one in (run, picture, training.load(path, backend="numpy"))]
    assert f"torch, 12 steps, validation accuracy {last['accuracy']:.4f} at step 12" in shown[0]
    assert "router soft_moe, " in shown[2]
    assert not [text for text in shown if "\n" in text or len(text) > 250]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda run: training.train("digit"), "config='digit': neither a file nor .*; did you mean digits"),
        (lambda run: training.train(training={"step": 3}), "^unknown key 'training.step'; did you mean training.steps"),
        (lambda run: training.train(run.config, data={"hue": 0.2}), "^data.hue=0.2 has no effect here"),
        (
            lambda run: training.train(run.config, run=run.path, training={"batch": 8}),
            "the configuration changed: training.batch",
        ),
        (lambda run: training.train(run=run.path, resume=True), "^log='a:b': the run's config.toml names code that"),
        (
            lambda run: training.train(run=run.path, resume="yes", training={"keep": np.int64(0)}),
            "^training.keep=0: expected an",
        ),
        (lambda run: training.train(model={"block": {1: {"experts": "x"}}}), "^model.block.1: expected one of the MoE"),
        (lambda run: training.train(hooks=[print, 3]), "^hooks=.*: expected functions of one argument"),
        (lambda run: training.train(evaluation=3), "^evaluation=3: expected tables"),
        (lambda run: run.evaluate(knn=20), "^knn=20: expected integers"),
        (lambda run: run.evaluate(trust="gone:LOSS"), "^trust='gone:LOSS': cannot be imported"),
        (lambda run: run.predict("none", top=0), "^top=0: expected"),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_written(tmp_path, runs, call, error):
    path = runs.stopped(runs.whole("torch"), tmp_path / "x", step=4)
    if "log" in error:
        (path / "config.toml").write_text((path / "config.toml").read_text().replace('log = ""', 'log = "a:b"'))
    before = runs.files(path)
    with pytest.raises(SpecError, match=error) as caught:
        call(training.Run(path))
    assert "\n" not in str(caught.value)
    assert runs.files(path) == before


NOTEBOOK = """
import os, signal, time
from moespec.training.interruption import Interruption
from moespec.training.progress_bar import Bar
for name in ("gone", "stays"):
    for _ in Bar(range(3), desc=name, leave=name == "stays"):
        time.sleep(0.3)
try:
    with Interruption() as first:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.3)
            print(first.signal.name)
except KeyboardInterrupt:
    print("the kernel lives")
"""


def test_a_notebook_has_one_line_of_progress_and_outlives_a_second_interrupt():
    client, v4 = pytest.importorskip("nbclient"), pytest.importorskip("nbformat").v4
    book = v4.new_notebook(cells=[v4.new_code_cell(NOTEBOOK)])
    outputs = client.execute(book, kernel_name="python3").cells[0].outputs
    (bar,) = [output.data["text/plain"] for output in outputs if output.output_type == "display_data"]
    assert bar.startswith("stays: 3/3, ")
    assert "".join(output.text for output in outputs if output.get("name") == "stdout") == "SIGINT\nthe kernel lives\n"
