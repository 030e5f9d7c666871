"""Whatever is changed, lost or added among the vectors is an error that names the file, and never a traceback."""

import hashlib
import json
import shutil
import sys

import numpy as np
import pytest
from damaged import damaged, message_of
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from moespec.conformance import suite
from moespec.conformance.format import VectorError
from moespec.conformance.manifest import to_text

TIED, GRADIENT = "token_choice/tied.json", "token_choice/gradient.json"
ERROR, SOFT = "z_loss/negative_value.json", "soft_routing/values.json"
ARRAYS = "soft_routing/values.safetensors"
RUN = ("run", "--target", "moespec.backends.numpy", "--dtype", "f64", "--vectors")


@pytest.fixture
def rejected(vectors, run):
    """Asserts that loading fails with a message that has each of the names, in Python and on the command line."""

    def rejected_(*names):
        with pytest.raises(VectorError) as caught:
            suite.load(vectors)
        status, printed, said = run(*RUN, vectors)
        assert status == 2
        for text in (str(caught.value), said):
            assert all(name in text for name in names), text
        assert len(said) < 1000
        assert "passed" not in printed

    return rejected_


def test_the_copy_is_sound(vectors, run):
    assert len(suite.load(vectors)) == 4
    status, printed, _ = run(*RUN, vectors)
    assert status == 0
    assert printed.endswith("\n4 passed, 0 failed, 0 skipped; 4 of 4 cases passed\n")


def test_a_manifest_of_0_2_has_a_revision(vectors, commit):
    """Which `suite.json` has now."""
    path = vectors / TIED
    path.write_text(to_text({**json.loads(path.read_text()), "revision": 1}))
    commit()
    assert len(suite.load(vectors)) == 4


@pytest.mark.parametrize("name", [TIED, SOFT, ARRAYS])
@pytest.mark.parametrize("where", [0.3, 0.99])
def test_a_flipped_bit(vectors, rejected, name, where):
    path = vectors / name
    data = bytearray(path.read_bytes())
    data[int(where * len(data))] ^= 1
    path.write_bytes(data)
    rejected(name)


@pytest.mark.parametrize(
    ("lost", "named"),
    [
        (TIED, TIED),
        (ARRAYS, ARRAYS),
        (SOFT, "soft_routing/values"),  # its arrays are left
        ("soft_routing", SOFT),
        ("", SOFT),
    ],
)
def test_a_file_or_folder_that_is_gone(vectors, rejected, lost, named):
    path = vectors / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    rejected(named)


@pytest.mark.parametrize(
    "name", ["token_choice/other.json", "token_choice/tied.safetensors", "token_choice/deep/tied.json", "notes.txt"]
)
def test_a_file_that_was_added(vectors, rejected, name):
    path = vectors / name
    path.parent.mkdir(exist_ok=True)
    shutil.copy(vectors / TIED, path)
    rejected(name)


SUITE_EDITS = {
    "cases": lambda algorithms: algorithms["token_choice"].update(cases=4),
    "sha256": lambda algorithms: algorithms["token_choice"].pop("sha256"),
    "entry": lambda algorithms: algorithms["token_choice"]["sha256"].pop("tied"),
    "algorithm": lambda algorithms: algorithms.pop("token_choice"),
    "list": lambda algorithms: algorithms.update(token_choice=[]),
}


@pytest.mark.parametrize("edit", [*SUITE_EDITS, "text", "absent"])
def test_a_suite_file_of_other_vectors(vectors, rejected, edit):
    path = vectors.parent / "suite.json"
    content = json.loads(path.read_text())
    if edit in SUITE_EDITS:
        SUITE_EDITS[edit](content["algorithms"])
    path.write_text("{" if edit == "text" else json.dumps(content))
    if edit == "absent":
        path.unlink()
    rejected("suite.json")


def rewrite_arrays(vectors, data):
    (vectors / ARRAYS).write_bytes(data)
    manifest = json.loads((vectors / SOFT).read_text())
    manifest["tensors"]["sha256"] = hashlib.sha256(data).hexdigest()
    (vectors / SOFT).write_text(json.dumps(manifest))


KEY = "stages/soft_routing/outputs/dispatch"
ARRAY_EDITS = {
    "extra": lambda arrays: arrays.update({"../../dispatch": arrays[KEY]}),
    "missing": lambda arrays: arrays.pop(KEY),
    "shape": lambda arrays: arrays.update({KEY: arrays[KEY].reshape(-1)}),
    "dtype": lambda arrays: arrays.update({KEY: arrays[KEY].astype(np.float32)}),
    "nan": lambda arrays: arrays.update({KEY: np.full_like(arrays[KEY], np.nan)}),
}


@pytest.mark.parametrize("edit", ARRAY_EDITS)
def test_other_arrays_whose_hash_is_right(vectors, commit, rejected, edit):
    arrays = load_tensors((vectors / ARRAYS).read_bytes())
    ARRAY_EDITS[edit](arrays)
    rewrite_arrays(vectors, save_tensors(arrays))
    commit()
    rejected("soft_routing/values")


# Manifests whose hash is right.


def scores(manifest):
    return manifest["inputs"]["scores"]


def stage(manifest):
    return manifest["stages"][0]


def slots(manifest):
    return stage(manifest)["outputs"]["slots"]


def weights(manifest):
    return stage(manifest)["outputs"]["weights"]


def filled(entry, number):
    return {"dtype": "float64", "shape": entry["shape"], "data": np.full(entry["shape"], number).tolist()}


EDITS = {
    "unknown schema": lambda m: m.update(schema=1),
    "input name goes up": lambda m: m["inputs"].update({"../../etc/passwd": scores(m)}),
    "tensors elsewhere": lambda m: m.update(tensors={"file": "../tied.safetensors", "sha256": "0" * 64}),
    "other id": lambda m: m.update(id="token_choice/other"),
    "input with a huge shape": lambda m: scores(m).update(shape=[10**30]),
    "input not a float32": lambda m: scores(m).update(data=0.1, shape=[], axes=[]),
    "input too large": lambda m: scores(m).update(data=10**400, shape=[], axes=[]),
    "input a literal NaN": lambda m: scores(m).update(data=float("nan"), shape=[], axes=[]),
    "input with one axis too few": lambda m: scores(m)["axes"].pop(),
    "unknown function": lambda m: stage(m).update(call="token_choices"),
    "two stages of one name": lambda m: m["stages"].append(stage(m)),
    "a stage called like an input": lambda m: (stage(m).update(name="scores"), m.update(decisions={})),
    "reads what is not there": lambda m: stage(m)["arguments"].update(scores="logits"),
    "reads an unknown function": lambda m: stage(m)["arguments"].update(
        scores={"call": "mlp", "arguments": {}, "options": {}}
    ),
    "no results": lambda m: stage(m).update(outputs={}),
    "an integer too large": lambda m: slots(m).update(data=2**40, shape=[], axes=[]),
    "scale below 0": lambda m: weights(m).update(scale=filled(weights(m), -1.0)),
    "decision of an unknown stage": lambda m: m["decisions"].update(dispatch={"margin": None}),
}
GRADIENT_EDITS = {
    "of an unknown stage": lambda m: m["gradients"].update(stage="dispatch"),
    "of a result of another shape": lambda m: weights(m).update(data=0.0, shape=[], axes=[], scale="magnitude"),
    "by what is not an input": lambda m: m["gradients"].update(wrt={"logits": m["gradients"]["wrt"]["scores"]}),
    "of another shape": lambda m: m["gradients"]["wrt"]["scores"].update(
        data=0.0, scale="magnitude", shape=[], axes=[]
    ),
    "with a probe of another shape": lambda m: m["gradients"]["probe"].update(data=0.0, shape=[], axes=[]),
}
ERROR_EDITS = {
    "a counterpart without an edit": lambda m: m["expect"].update(valid={"options": {}, "inputs": {}}),
    "unknown stage": lambda m: m["expect"].update(stage="dispatch"),
    "a counterpart of something else": lambda m: m["expect"]["valid"].update(options={"by": "max"}),
    "a counterpart as invalid": lambda m: m["expect"]["valid"].update(inputs=m["inputs"]),
}
ALL = [(TIED, EDITS[name], name) for name in EDITS]
ALL += [(GRADIENT, GRADIENT_EDITS[name], name) for name in GRADIENT_EDITS]
ALL += [(ERROR, ERROR_EDITS[name], name) for name in ERROR_EDITS]


@pytest.mark.parametrize(("file", "edit"), [each[:2] for each in ALL], ids=[f"{file}: {name}" for file, _, name in ALL])
def test_a_wrong_manifest_whose_hash_is_right(vectors, commit, file, edit):
    manifest = json.loads((vectors / file).read_text())
    edit(manifest)
    (vectors / file).write_text(json.dumps(manifest))
    commit()
    assert file in message_of(VectorError, suite.load, vectors)


FREE = ("options",)
OPTIONAL = ("arguments", "decisions", "flags", "inputs", "losses", "outputs", "stages")
"""Objects and lists one entry of which may be gone, and all may be right."""


@pytest.mark.parametrize("file", [TIED, GRADIENT, ERROR, SOFT])
def test_no_manifest_that_is_damaged_is_read(vectors, commit, file):
    path = vectors / file
    for damage, wrong in damaged(json.loads(path.read_text()), 60, free=FREE, optional=OPTIONAL):
        path.write_text(json.dumps(wrong))
        commit()
        said = message_of(VectorError, suite.load, vectors, lambda id: file.startswith(id))
        assert said, damage
        assert len(said) < 500 + len(str(path))
        assert len(said.splitlines()) == 1


def test_other_vectors_are_not_read_without_jsonschema(vectors, monkeypatch, rejected):
    monkeypatch.setitem(sys.modules, "jsonschema.exceptions", None)
    rejected("jsonschema is not installed. Install it: pip install 'moespec[conformance]'")
    assert len(suite.load(only=lambda id: id == "z_loss/values")) == 1


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", '"tied"', "null", "[" * 100_000, "{}", "\N{BYTE ORDER MARK}{}", '{"schema": 2}', b"\xff\xfe{"],
)
def test_a_file_that_is_not_a_manifest(vectors, commit, rejected, text):
    (vectors / TIED).write_bytes(text if isinstance(text, bytes) else text.encode())
    commit()
    rejected(TIED)


def test_a_file_that_is_gone_is_missed_whatever_is_chosen(vectors):
    (vectors / SOFT).unlink()
    with pytest.raises(VectorError, match=r"soft_routing/values"):
        suite.load(vectors, lambda id: id == "token_choice/tied")


def test_hidden_files_of_a_file_manager_do_not_count(vectors):
    (vectors / ".DS_Store").write_bytes(b"")
    (vectors / "token_choice/.DS_Store").write_bytes(b"")
    assert len(suite.load(vectors)) == 4
