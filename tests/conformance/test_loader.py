"""Whatever is changed, lost or added among the vectors is an error that names the file, and never a traceback."""

import hashlib
import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from moespec.conformance import suite
from moespec.conformance.__main__ import main
from moespec.conformance.format import VectorError

TIED, GRADIENT = "token_choice/tied.json", "token_choice/gradient.json"
NEGATIVE, SOFT = "token_choice/negative_nan.json", "soft_routing/values.json"
ARRAYS = "soft_routing/values.safetensors"


def refused(vectors, capsys, *names):
    """Asserts that loading fails with a message that has each of the names, in Python and on the command line."""
    with pytest.raises(VectorError) as caught:
        suite.load(vectors)
    assert all(name in str(caught.value) for name in names), caught.value
    assert main(["run", "--target", "moespec.backends.numpy", "--lane", "f64", "--vectors", str(vectors)]) == 1
    printed = capsys.readouterr()
    assert all(name in printed.err for name in names)
    assert "Traceback" not in printed.err
    assert len(printed.err) < 1000
    assert "passed" not in printed.out


def test_the_copy_is_sound(vectors, capsys):
    assert len(suite.load(vectors)) == 4
    assert main(["run", "--target", "moespec.backends.numpy", "--lane", "f64", "--vectors", str(vectors)]) == 0
    assert capsys.readouterr().out.endswith("\n4 passed, 0 failed, 0 skipped\n")


@pytest.mark.parametrize("name", [TIED, SOFT, ARRAYS])
@pytest.mark.parametrize("where", [0.3, 0.99])
def test_a_flipped_bit(vectors, capsys, name, where):
    path = vectors / name
    data = bytearray(path.read_bytes())
    data[int(where * len(data))] ^= 1
    path.write_bytes(data)
    refused(vectors, capsys, name)


@pytest.mark.parametrize("name", [TIED, ARRAYS])
def test_a_file_that_is_gone(vectors, capsys, name):
    (vectors / name).unlink()
    refused(vectors, capsys, name)


def test_a_manifest_that_is_gone_leaves_arrays(vectors, capsys):
    (vectors / SOFT).unlink()
    refused(vectors, capsys, "soft_routing/values")


def test_an_algorithm_that_is_gone(vectors, capsys):
    shutil.rmtree(vectors / "soft_routing")
    refused(vectors, capsys, SOFT)


def test_everything_is_gone(vectors, capsys):
    shutil.rmtree(vectors)
    refused(vectors, capsys, SOFT)


@pytest.mark.parametrize(
    "name", ["token_choice/other.json", "token_choice/tied.safetensors", "token_choice/deep/tied.json", "notes.txt"]
)
def test_a_file_that_was_added(vectors, capsys, name):
    path = vectors / name
    path.parent.mkdir(exist_ok=True)
    shutil.copy(vectors / TIED, path)
    refused(vectors, capsys, name)


@pytest.mark.parametrize("edit", ["cases", "sha256", "entry", "algorithm", "list", "text", "absent"])
def test_a_suite_that_says_something_else(vectors, capsys, edit):
    path = vectors.parent / "suite.json"
    content = json.loads(path.read_text())
    entry = content["algorithms"]["token_choice"]
    if edit == "cases":
        entry["cases"] += 1
    elif edit == "sha256":
        del entry["sha256"]
    elif edit == "entry":
        del entry["sha256"]["tied"]
    elif edit == "algorithm":
        del content["algorithms"]["token_choice"]
    elif edit == "list":
        content["algorithms"] = list(content["algorithms"])
    path.write_text("{" if edit == "text" else json.dumps(content))
    if edit == "absent":
        path.unlink()
    refused(vectors, capsys, "suite.json")


@pytest.mark.parametrize("size", [0, 7, 100, -1])
def test_truncated_arrays_whose_hash_is_right(vectors, commit, capsys, size):
    data = (vectors / ARRAYS).read_bytes()[:size]
    rewrite_arrays(vectors, data)
    commit()
    refused(vectors, capsys, ARRAYS)


def rewrite_arrays(vectors, data):
    (vectors / ARRAYS).write_bytes(data)
    manifest = json.loads((vectors / SOFT).read_text())
    manifest["tensors"]["sha256"] = hashlib.sha256(data).hexdigest()
    (vectors / SOFT).write_text(json.dumps(manifest))


@pytest.mark.parametrize("edit", ["extra", "missing", "shape", "dtype", "nan"])
def test_other_arrays_whose_hash_is_right(vectors, commit, capsys, edit):
    arrays = load_tensors((vectors / ARRAYS).read_bytes())
    key = "routing/dispatch"
    if edit == "extra":
        arrays["../../routing/dispatch"] = arrays[key]
    elif edit == "missing":
        del arrays[key]
    else:
        arrays[key] = {
            "shape": arrays[key].reshape(-1),
            "dtype": arrays[key].astype(np.float32),
            "nan": np.full_like(arrays[key], np.nan),
        }[edit]
    rewrite_arrays(vectors, save_tensors(arrays))
    commit()
    refused(vectors, capsys, "soft_routing/values")


EDITS = {
    "no inputs": lambda m: m["inputs"].clear(),
    "unknown schema": lambda m: m.update(schema=2),
    "schema as text": lambda m: m.update(schema="1"),
    "unknown field": lambda m: m.update(timestamp=0),
    "missing field": lambda m: m.pop("purpose"),
    "purpose is a number": lambda m: m.update(purpose=3),
    "other id": lambda m: m.update(id="token_choice/other"),
    "id outside": lambda m: m.update(id="../token_choice/tied"),
    "other algorithm": lambda m: m.update(algorithm="expert_choice"),
    "revision as text": lambda m: m.update(revision="1"),
    "revision is true": lambda m: m.update(revision=True),
    "revision 0": lambda m: m.update(revision=0),
    "unknown class": lambda m: m.update({"class": "random"}),
    "a negative without an error": lambda m: m.update({"class": "negative"}),
    "a gradient without one": lambda m: m.update({"class": "gradient"}),
    "flags as text": lambda m: m.update(flags="tie_order"),
    "config is a list": lambda m: m.update(config=[]),
    "inputs is a list": lambda m: m.update(inputs=[1]),
    "input name goes up": lambda m: m["inputs"].update({"../../etc/passwd": m["inputs"]["scores"]}),
    "input without data": lambda m: m["inputs"]["scores"].pop("data"),
    "input of objects": lambda m: m["inputs"]["scores"].update(dtype="object"),
    "input of float16": lambda m: m["inputs"]["scores"].update(dtype="float16"),
    "input of float64": lambda m: m["inputs"]["scores"].update(dtype="float64"),
    "input with other shape": lambda m: m["inputs"]["scores"].update(shape=[1, 1]),
    "input with a huge shape": lambda m: m["inputs"]["scores"].update(shape=[10**30]),
    "input with a shape left open": lambda m: m["inputs"]["scores"].update(shape=[2, 6, -1]),
    "input not a float32": lambda m: m["inputs"]["scores"].update(data=0.1, shape=[], axes=[]),
    "input too large": lambda m: m["inputs"]["scores"].update(data=10**400, shape=[], axes=[]),
    "input not finite": lambda m: m["inputs"]["scores"].update(data="nan", shape=[], axes=[]),
    "input a literal NaN": lambda m: m["inputs"]["scores"].update(data=float("nan"), shape=[], axes=[]),
    "input with one axis too few": lambda m: m["inputs"]["scores"]["axes"].pop(),
    "input in a file": lambda m: m["inputs"]["scores"].update(tensor=m["inputs"]["scores"].pop("data") and "../x"),
    "tensors elsewhere": lambda m: m.update(tensors={"file": "../soft_routing/values.safetensors", "sha256": "0"}),
    "tensors absolute": lambda m: m.update(tensors={"file": "/etc/passwd", "sha256": "0"}),
    "tensors without a hash": lambda m: m.update(tensors={"file": "tied.safetensors"}),
    "tensors is null": lambda m: m.update(tensors=None),
    "tensors is a list": lambda m: m.update(tensors=[]),
    "no stages": lambda m: m.update(stages=[]),
    "stages is an object": lambda m: m.update(stages={}),
    "unknown stage": lambda m: m["stages"][0].update(name="dispatch"),
    "reads what is not there": lambda m: m["stages"][0].update(reads=["logits"]),
    "no results": lambda m: m["stages"][0].update(outputs={}),
    "unknown kind": lambda m: slots(m).update(kind="bool"),
    "a float of kind int": lambda m: slots(m).update(dtype="float64"),
    "an integer with a fraction": lambda m: slots(m).update(data=1.5, shape=[], axes=[]),
    "an integer too large": lambda m: slots(m).update(data=2**40, shape=[], axes=[]),
    "unknown scale": lambda m: weights(m).update(scale="huge"),
    "scale of another shape": lambda m: weights(m).update(scale={"dtype": "float64", "shape": [1], "data": [1.0]}),
    "scale below 0": lambda m: weights(m).update(scale=dict_of(weights(m), -1.0)),
    "scale infinite": lambda m: weights(m).update(scale=dict_of(weights(m), "inf")),
    "scale is a number": lambda m: weights(m).update(scale=1),
    "unknown constant": lambda m: weights(m).update(constant="generous"),
    "constant is a number": lambda m: weights(m).update(constant=1e9),
    "a decision of nothing": lambda m: m["decisions"].update(dispatch={"margin": None}),
    "a decision without margin": lambda m: m["decisions"].update(allocation={}),
    "a decision without needs": lambda m: m["decisions"].update(allocation={"margin": 0.5}),
    "a decision with a lane too few": lambda m: m["decisions"].update(allocation={"margin": 1, "needed": {"f64": 0}}),
    "a margin below 0": lambda m: m["decisions"].update(allocation=margins(-1)),
    "a margin that is text": lambda m: m["decisions"].update(allocation=margins("1")),
}  # fmt: skip


def slots(manifest):
    return manifest["stages"][0]["outputs"]["slots"]


def weights(manifest):
    return manifest["stages"][0]["outputs"]["weights"]


def dict_of(entry, number):
    return {"dtype": "float64", "shape": entry["shape"], "data": np.full(entry["shape"], number).tolist()}


def margins(margin):
    return {"margin": margin, "needed": {"f64": 1e-15, "f32": 1e-6, "bf16": 1e-2}}


@pytest.mark.parametrize("edit", EDITS)
def test_a_wrong_manifest_whose_hash_is_right(vectors, commit, capsys, edit):
    wrong(vectors, commit, capsys, TIED, EDITS[edit])


GRADIENT_EDITS = {
    "of an unknown stage": lambda m: m["gradients"].update(stage="dispatch"),
    "of an unknown result": lambda m: m["gradients"].update(output="logits"),
    "of a result of another shape": lambda m: m["gradients"].update(output="order"),
    "by nothing": lambda m: m["gradients"].update(wrt={}),
    "by what is no input": lambda m: m["gradients"].update(wrt={"logits": m["gradients"]["wrt"]["scores"]}),
    "of another shape": lambda m: m["gradients"]["wrt"]["scores"].update(
        data=0.0, scale="magnitude", shape=[], axes=[]
    ),
    "with a probe of another shape": lambda m: m["gradients"]["probe"].update(data=0.0, shape=[], axes=[]),
    "without a probe": lambda m: m["gradients"].pop("probe"),
    "is a list": lambda m: m.update(gradients=[]),
}


@pytest.mark.parametrize("edit", GRADIENT_EDITS)
def test_a_wrong_gradient_whose_hash_is_right(vectors, commit, capsys, edit):
    wrong(vectors, commit, capsys, GRADIENT, GRADIENT_EDITS[edit])


NEGATIVE_EDITS = {
    "no error": lambda m: m["expect"].pop("error"),
    "no argument": lambda m: m["expect"].pop("argument"),
    "no twin": lambda m: m["expect"].pop("twin"),
    "error is a list": lambda m: m["expect"].update(error=["ContractError"]),
    "unknown stage": lambda m: m["expect"].update(stage="dispatch"),
    "unknown time": lambda m: m["expect"].update(when="never"),
    "twin of nothing": lambda m: m["expect"].update(twin={"config": {}, "inputs": {}}),
    "twin of something else": lambda m: m["expect"]["twin"].update(config={"by": "max"}),
    "twin with the fault": lambda m: m["expect"]["twin"].update(inputs=m["inputs"]),
    "stages": lambda m: m.update(stages=[]),
    "expect is a list": lambda m: m.update(expect=[]),
    "expects more": lambda m: m["expect"].update(text="NaN"),
}


@pytest.mark.parametrize("edit", NEGATIVE_EDITS)
def test_a_wrong_negative_whose_hash_is_right(vectors, commit, capsys, edit):
    wrong(vectors, commit, capsys, NEGATIVE, NEGATIVE_EDITS[edit])


def wrong(vectors, commit, capsys, name, edit):
    manifest = json.loads((vectors / name).read_text())
    edit(manifest)
    (vectors / name).write_text(json.dumps(manifest))
    commit()
    refused(vectors, capsys, name)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", '"tied"', "null", "[" * 100_000, "{}", "\N{BYTE ORDER MARK}{}", '{"schema": 1}']
)
def test_what_is_no_manifest(vectors, commit, capsys, text):
    (vectors / TIED).write_text(text)
    commit()
    refused(vectors, capsys, TIED)


def test_bytes_that_are_no_text(vectors, commit, capsys):
    (vectors / TIED).write_bytes(b"\xff\xfe{")
    commit()
    refused(vectors, capsys, TIED)


def test_a_case_under_another_name(vectors, commit, capsys):
    (vectors / TIED).rename(vectors / "token_choice/untied.json")
    commit()
    refused(vectors, capsys, "token_choice/untied.json")


def test_damage_in_a_vector_that_was_not_asked_for(vectors):
    (vectors / ARRAYS).unlink()
    with pytest.raises(VectorError, match=r"values\.safetensors"):
        suite.load(vectors, lambda id: id == "token_choice/tied")


def test_hidden_files_of_a_file_manager_do_not_count(vectors):
    (vectors / ".DS_Store").write_bytes(b"")
    (vectors / "token_choice/.DS_Store").write_bytes(b"")
    assert len(suite.load(vectors)) == 4
