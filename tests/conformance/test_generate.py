"""Making vectors, and checking committed ones, on the cases of the z loss and some of Expert Choice."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from moespec.conformance import generate as module
from moespec.conformance import suite
from moespec.conformance.__main__ import main
from moespec.conformance.cases import allocations, losses
from moespec.conformance.format import Tensor, VectorError, read, write
from moespec.conformance.generate import StaleError, build, differences, generate
from moespec.conformance.judge import LANES, tolerance
from moespec.conformance.program import Output, Stage
from moespec.conformance.reference import GoldenError, gradients

DEFINED = {case.id: case for case in (*losses.cases(), *allocations.cases())}
KEPT = ("z_loss/values", "z_loss/equal", "z_loss/gradient", "expert_choice/two_slots")


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(module, "definitions", lambda: {id: DEFINED[id] for id in KEPT})


@pytest.fixture
def folder(tmp_path):
    for id in KEPT:
        path = tmp_path / "vectors" / f"{id}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(suite.VECTORS / f"{id}.json", path)
    commit(tmp_path / "vectors")
    return tmp_path / "vectors"


def commit(folder):
    (folder.parent / "suite.json").write_text(suite.suite_text(folder))


def texts(folder):
    return {str(path.relative_to(folder.parent)): path.read_text() for path in folder.parent.rglob("*.json")}


def change(folder, id, edit):
    """Rewrites a committed case as `edit` makes it, and the suite file."""
    write(edit(read(folder / f"{id}.json")), folder)
    commit(folder)


def with_output(name, edit):
    """A case whose stage has another value for a result."""

    def edited(case):
        (stage,) = case.stages
        return replace(case, stages=(replace(stage, outputs={**stage.outputs, name: edit(stage.outputs[name])}),))

    return edited


def moved(value, share):
    """The result moved by a share of what a check allows, twice the tolerance in float64."""
    return replace(value, array=value.array + share * 2 * tolerance(value, LANES["f64"]))


def reports(folder, text, *, id=""):
    """Asserts that checking and making both refuse, with a message, and write nothing."""
    before = texts(folder)
    for check in (True, False):
        with pytest.raises(StaleError, match=text) as caught:
            generate(folder, check=check, report=print)
        assert id in str(caught.value)
        assert "raise the revision" in str(caught.value)
        assert texts(folder) == before


def test_what_is_committed_is_what_is_made(folder, capsys):
    before = texts(folder)
    assert generate(folder, check=True) == len(KEPT)
    assert generate(folder) == len(KEPT)
    assert capsys.readouterr().out == "4 cases as committed\n4 cases made, 0 written\n"
    assert texts(folder) == before


@pytest.mark.parametrize("share", [0.7, -0.7])
def test_other_last_bits_are_no_change(folder, share):
    change(folder, "z_loss/values", with_output("loss", lambda value: moved(value, share)))
    assert generate(folder, check=True) == len(KEPT)


@pytest.mark.parametrize("share", [1.5, -1.5, 1e6])
def test_a_number_beyond_the_tolerance_is_stale(folder, share):
    change(folder, "z_loss/values", with_output("loss", lambda value: moved(value, share)))
    reports(folder, "1 floats differ", id="z_loss/values: loss/loss")


def test_a_number_that_is_no_longer_one_is_stale():
    committed = build(DEFINED["z_loss/values"])
    made = with_output("loss", lambda value: replace(value, array=np.full_like(value.array, np.nan)))(committed)
    assert "1 floats differ" in differences(committed, made)


def test_an_integer_is_exact(folder):
    change(folder, "expert_choice/two_slots", with_output("slots", lambda value: replace(value, array=value.array ^ 1)))
    reports(folder, "12 integers differ", id="expert_choice/two_slots: allocation/slots")


def test_another_scale_is_stale(folder):
    change(folder, "z_loss/values", with_output("loss", lambda value: replace(value, scale=1.1 * value.scale)))
    reports(folder, "the scale differs", id="z_loss/values: loss/loss")


def test_another_gradient_is_stale(folder):
    def edit(case):
        wrt = {name: moved(value, 3) for name, value in case.gradients.wrt.items()}
        return replace(case, gradients=replace(case.gradients, wrt=wrt))

    change(folder, "z_loss/gradient", edit)
    reports(folder, "floats differ", id="z_loss/gradient: gradient/logits")


def test_another_input_is_stale(folder):
    def edit(case):
        logits = case.inputs["logits"]
        return replace(case, inputs={"logits": Tensor(logits.array + np.float32(2**-10), logits.axes)})

    change(folder, "z_loss/values", edit)
    reports(folder, "the input logits differs", id="z_loss/values")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"purpose": "Another."}, "Another."),
        ({"flags": ("tie_order",)}, "tie_order"),
        ({"config": {"weight": 2}}, "weight"),
        ({"kind": "tie"}, "tie"),
        ({"cites": "Nobody"}, "Nobody"),
    ],
)
def test_another_manifest_is_stale(folder, fields, text):
    change(folder, "z_loss/values", lambda case: replace(case, **fields))
    reports(folder, text, id="z_loss/values")


def test_a_raised_revision_allows_to_write(folder):
    edit = with_output("loss", lambda value: moved(value, 1e6))
    change(folder, "z_loss/values", lambda case: replace(edit(case), revision=0))  # the registry says 1
    with pytest.raises(StaleError, match="revision"):
        generate(folder, check=True)
    said = []
    generate(folder, report=said.append)
    assert said == ["4 cases made, 1 written"]
    for id in KEPT:
        assert (folder / f"{id}.json").read_text() == (suite.VECTORS / f"{id}.json").read_text()
    assert len(suite.load(folder)) == len(KEPT)


def test_a_missing_vector_is_stale_or_made(folder):
    whole = texts(folder)
    (folder / "z_loss/equal.json").unlink()
    commit(folder)
    with pytest.raises(StaleError, match="z_loss/equal: no such vector"):
        generate(folder, check=True)
    generate(folder)
    assert texts(folder) == whole


def test_vectors_are_made_from_nothing(folder, tmp_path_factory):
    new = tmp_path_factory.mktemp("new") / "vectors"
    generate(new)
    assert texts(new) == texts(folder)


def test_a_vector_without_a_definition_is_stale(folder):
    change(folder, "z_loss/values", lambda case: replace(case, id="z_loss/stranger"))
    reports(folder, "z_loss/stranger: a vector without a definition")
    generate(folder, check=True, only=lambda id: id != "z_loss/stranger")


def test_a_suite_file_of_other_vectors_is_found(folder):
    path = folder.parent / "suite.json"
    path.write_text(path.read_text().replace('"cases": 3', '"cases": 4'))
    with pytest.raises(VectorError, match=r"suite\.json"):
        generate(folder, check=True)


def test_the_command_line(folder, capsys):
    assert main(["golden", "--check", "--vectors", str(folder)]) == 0
    change(folder, "z_loss/values", with_output("loss", lambda value: moved(value, 1e6)))
    assert main(["golden", "--check", "--vectors", str(folder)]) == 1
    assert "z_loss/values: loss/loss" in capsys.readouterr().err
    assert main(["golden", "--check", "--vectors", str(folder), "--algorithm", "expert_choice"]) == 0


# The gradient of a golden is found in two ways.


def stage_of(function):
    return Stage("loss", (), ("x",), lambda B, config, v: {"loss": function(v["x"])}, {"loss": Output(("groups",))})


def test_a_gradient_is_exact():
    x = {"x": Tensor(np.array([[0.5, -1.5, 2.0]], np.float32), ("groups", "n"))}
    found = gradients(stage_of(lambda x: np.sum(x**3)), {}, x, "loss", ("x",), "key")
    probe = found.probe.array[0]
    np.testing.assert_allclose(found.wrt["x"].array, 3 * probe * x["x"].array.astype(float) ** 2, rtol=1e-15)


@pytest.mark.parametrize("function", [lambda x: np.sum(np.abs(x)), lambda x: np.sum(x.real * x), np.linalg.norm])
def test_a_dropped_imaginary_part_is_no_gradient(function):
    x = {"x": Tensor(np.array([[0.5, -1.5, 2.0]], np.float32), ("groups", "n"))}
    with pytest.raises(GoldenError, match="d/dx"):
        gradients(stage_of(function), {}, x, "loss", ("x",), "key")
