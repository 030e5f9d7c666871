"""Making vectors, and checking committed ones, on the cases of the z loss and some of Expert Choice."""

import json
from dataclasses import replace

import numpy as np
import pytest
from committed import commit

from moespec.conformance import suite
from moespec.conformance.__main__ import main
from moespec.conformance.author.reference import Making
from moespec.conformance.author.reference_gradients import gradients
from moespec.conformance.compare import tolerance
from moespec.conformance.format import GoldenError, Stage, Tensor, Value
from moespec.conformance.functions import FUNCTIONS
from moespec.conformance.functions.describe import Function, Output
from moespec.conformance.golden import generate as module
from moespec.conformance.golden.derived import all_definitions
from moespec.conformance.golden.generate import MADE, StaleError, generate
from moespec.conformance.manifest import read, write

KEPT = ("z_loss/values", "z_loss/equal", "z_loss/gradient", "expert_choice/two_slots")
DEFINED = {id: all_definitions()[id] for id in KEPT}


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(module, "all_definitions", lambda: DEFINED)


@pytest.fixture
def folder(tmp_path, copied):
    return copied(tmp_path / "vectors", KEPT)


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


def moved(value, fraction):
    """The result moved by a fraction of what a check allows, twice the tolerance in float64."""
    return replace(value, array=value.array + fraction * 2 * tolerance(value, MADE))


def stale(folder, text, *, id=""):
    """Asserts that checking and making both fail, with a message, and write nothing."""
    before = texts(folder)
    for check in (True, False):
        with pytest.raises(StaleError, match=text) as caught:
            generate(folder, check=check, report=print)
        assert id in str(caught.value)
        assert ("raise the revision" in str(caught.value)) == ("without a definition" not in text)
        assert texts(folder) == before


def test_what_is_committed_is_what_is_made(folder, capsys):
    before = texts(folder)
    assert generate(folder, check=True) == len(KEPT)
    assert generate(folder) == len(KEPT)
    assert capsys.readouterr().out == "4 cases as committed\n4 cases made, 0 written\n"
    assert texts(folder) == before


@pytest.mark.parametrize("fraction", [0.7, -0.7])
def test_other_last_bits_are_no_change(folder, fraction):
    change(folder, "z_loss/values", with_output("loss", lambda value: moved(value, fraction)))
    assert generate(folder, check=True) == len(KEPT)


def other_gradient(case):
    wrt = {name: moved(value, 3) for name, value in case.gradients.wrt.items()}
    return replace(case, gradients=replace(case.gradients, wrt=wrt))


def other_input(case):
    logits = case.inputs["logits"]
    return replace(case, inputs={"logits": Tensor(logits.array + np.float32(2**-10), logits.axes)})


def other_options(case):
    return replace(case, stages=(replace(case.stages[0], options={"capacity": 2, "drop_zero": True}),))


VALUES, SLOTS = "z_loss/values", "expert_choice/two_slots"
EDITS = [
    *((f"{VALUES}: z_loss/loss", "1 floats differ", with_output("loss", lambda value, by=by: moved(value, by)))
      for by in (1.5, -1.5, 1e6)),
    (f"{VALUES}: z_loss/loss", "the scale differs", with_output("loss", lambda value: replace(value, scale=1.1 * value.scale))),
    (f"{SLOTS}: expert_choice/slots", "12 integers differ",
     with_output("slots", lambda value: replace(value, array=value.array ^ 1))),
    ("z_loss/gradient: gradient/logits", "floats differ", other_gradient),
    (VALUES, "the input logits differs", other_input),
    (SLOTS, "drop_zero", other_options),
    (VALUES, "tie_order", lambda case: replace(case, flags=("tie_order",))),
]  # fmt: skip


@pytest.mark.parametrize(("place", "text", "edit"), EDITS)
def test_a_changed_vector_is_stale(folder, place, text, edit):
    change(folder, place.split(":")[0], edit)
    stale(folder, text, id=place)


def test_a_raised_revision_allows_to_write(folder):
    edit = with_output("loss", lambda value: moved(value, 1e6))
    change(folder, "z_loss/values", edit)
    path = folder.parent / "suite.json"
    text = path.read_text()
    suite_of = json.loads(text)
    suite_of["algorithms"]["z_loss"]["revision"] = 1  # the registry says 2
    path.write_text(json.dumps(suite_of))
    with pytest.raises(StaleError, match=r"z_loss: suite\.json has revision 1, the specification 2"):
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
    with pytest.raises(StaleError, match="z_loss/equal: missing vector; create it with `golden`"):
        generate(folder, check=True)
    generate(folder)
    assert texts(folder) == whole


def test_a_case_that_cannot_be_made_loses_no_other(folder, monkeypatch):
    whole = texts(folder)
    (folder / "z_loss/equal.json").unlink()
    commit(folder)
    (stage,) = DEFINED["z_loss/values"].stages
    impossible = replace(DEFINED["z_loss/values"], name="impossible", stages=(replace(stage, options={"nonsense": 1}),))
    monkeypatch.setattr(module, "all_definitions", lambda: {impossible.id: impossible, **DEFINED})
    with pytest.raises(StaleError, match=r"z_loss/impossible: TypeError: .*nonsense"):
        generate(folder)
    assert texts(folder) | {"suite.json": ""} == whole | {"suite.json": ""}


def test_a_vector_without_a_definition_is_stale(folder):
    change(folder, "z_loss/values", lambda case: replace(case, id="z_loss/undefined"))
    stale(folder, "z_loss/undefined: vector without a definition")
    generate(folder, check=True, only=lambda id: id != "z_loss/undefined")


def test_the_command_line(folder, capsys):
    assert main(["golden", "--check", "--vectors", str(folder)]) == 0
    change(folder, "z_loss/values", with_output("loss", lambda value: moved(value, 1e6)))
    assert main(["golden", "--check", "--vectors", str(folder)]) == 1
    assert "z_loss/values: z_loss/loss" in capsys.readouterr().err
    assert main(["golden", "--check", "--vectors", str(folder), "--algorithm", "expert_choice"]) == 0


# The expected gradient is computed in two ways.


@pytest.fixture
def derived(monkeypatch):
    """The gradient of a function of an array (groups, n), as a vector stores it."""

    def derived_(function):
        known = Function("a_function", {"loss": Output()}, run=lambda module, x: {"loss": function(x)})
        monkeypatch.setitem(FUNCTIONS, known.name, known)
        outputs = {"loss": Value(np.zeros(()), (), "float")}
        making = Making({"x": Tensor(np.array([[0.5, -1.5, 2.0]], np.float32), ("groups", "n"))})
        return gradients(making, Stage("loss", known.name, {"x": "x"}, {}, outputs), "loss", ("x",), "key")

    return derived_


def test_a_gradient_is_exact(derived):
    slopes = derived(lambda x: np.sum(x**3))
    np.testing.assert_allclose(slopes.wrt["x"].array, [[3 * 0.5**2, 3 * 1.5**2, 3 * 2.0**2]], rtol=1e-15)


@pytest.mark.parametrize("function", [lambda x: np.sum(np.abs(x)), lambda x: np.sum(x.real * x), np.linalg.norm])
def test_a_dropped_imaginary_part_is_an_error(derived, function):
    with pytest.raises(GoldenError, match="d/dx"):
        derived(function)
