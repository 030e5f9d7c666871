"""Recordings of gates: what is kept, which router explains it, and two engines of which one has a planted mistake."""

import re
from functools import partial

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from moespec.conformance.check.files import FileError
from moespec.conformance.record import Gate, explain, part, read, recording, tap, write
from moespec.conformance.record.file import KEY, _digest
from moespec.conformance.record.recorder import rows
from moespec.models.errors import RunError
from moespec.models.files import signed, unsigned
from moespec.spec import sigmoid_affinity, softmax_affinity
from moespec.spec.errors import ShapeError

TOKENS, EXPERTS, CHOICES = 256, 16, 4


def logits_of(seed=0, tokens=TOKENS, experts=EXPERTS):
    return np.random.default_rng(seed).normal(size=(tokens, experts)).astype(np.float32)


def bfloat16(x):
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)


def top(scores, choices=CHOICES, last=False):
    order = np.argsort(-(scores[:, ::-1] if last else scores), axis=1, kind="stable")[:, :choices]
    return EXPERTS - 1 - order if last else order


def softmax_gate(logits, mistake=""):
    """Softmax Token Choice with normalised weights."""
    scores = softmax_affinity(logits)
    if mistake == "scores in bfloat16":
        scores = bfloat16(scores)
    choices = top(scores, last=mistake == "ties")
    weights = np.take_along_axis(scores, choices, axis=1)
    return choices, weights if mistake == "not divided" else weights / weights.sum(axis=1, keepdims=True)


def sigmoid_gate(logits, bias, mistake=""):
    """DeepSeek-V3's: 2 of 4 groups by the sum of their best 2, the bias for the choice alone, scale 2.5."""
    scores = sigmoid_affinity(logits)
    members = np.sort((scores + bias).reshape(len(logits), 4, -1), axis=2)
    groups = top(members[..., -1] if mistake == "group by its best" else members[..., -2:].sum(axis=2), 2)
    inside = (np.arange(EXPERTS) // 4 == groups[:, :, None]).any(axis=1)
    choices = top(np.where(inside, scores + bias, -np.inf))
    weights = np.take_along_axis(scores + bias if mistake == "bias in the weights" else scores, choices, axis=1)
    return choices, 2.5 * weights / weights.sum(axis=1, keepdims=True)


def recorded(path, logits, mistake="", gate="softmax", layers=2):
    """The recording of gates of some layers."""
    bias = 0.1 * logits_of(9, 1)[0]
    given, biased = ((softmax_gate, {}), (partial(sigmoid_gate, bias=bias), {"bias": bias}))[gate == "sigmoid"]
    with recording(path):
        for layer in range(layers):
            choices, weights = given(logits, mistake=mistake if layer else "")
            tap("gate", layer=layer, logits=logits, choices=choices, weights=weights.astype(np.float32), **biased)
    return read(path)


@pytest.mark.parametrize(
    ("gate", "mistake", "words"),
    [
        ("softmax", "not divided", ["weights: softmax (100%)", "follows its logits by a different rule of weights."]),
        ("softmax", "scores in bfloat16", ["near ties only in bfloat16", "scores, rounded to bfloat16"]),
        ("sigmoid", "group by its best", ["neither near ties nor", "ranked by their best score, ", "rule of choice."]),
        ("sigmoid", "bias in the weights", ["for equal choices differ", "sigmoid + bias (the weights include the"]),
    ],
)
def test_a_planted_mistake_is_told_in_words(tmp_path, gate, mistake, words):
    right = recorded(tmp_path / "right", logits_of(), gate=gate)
    wrong = recorded(tmp_path / "wrong", logits_of(), mistake, gate)
    text, agree = part(right, wrong)
    assert not agree
    for each in ("diverge in 1 of 2 gates, first in gate.1", "logits   equal", "The router is the cause", *words):
        assert each in text
    text, agree = part(right, right)
    assert agree
    assert "agree in all 2 gates" in text


@pytest.mark.parametrize(
    ("scores", "count", "changed", "divide", "words"),
    [  # choices that no rule explains, weights that none explains, and one choice, which two rules explain
        (softmax_affinity, 4, 3, np.sum, "each follows its logits by a different rule of weights."),
        (
            softmax_affinity,
            4,
            0,
            np.max,
            "they differ in weights, and no known rule explains the weights of the second.",
        ),
        (lambda x: softmax_affinity(1.7 * x), 4, 0, np.sum, "explains the weights of the first and the second."),
        (sigmoid_affinity, 1, 0, np.sum, "each follows its logits by a different rule of weights."),
    ],
)
def test_the_last_line_is_true_where_only_the_division_of_weights_differs(
    scores, count, changed, divide, words, tmp_path
):
    logits, gates = logits_of(3), []
    for divided in (False, True):
        with recording(tmp_path / "a.safetensors"):
            choices = top(scores(logits), count)
            choices[:changed] = range(count)
            weights = np.take_along_axis(scores(logits), choices, axis=1)
            weights = weights / divide(weights, axis=1, keepdims=True) if divided else weights
            tap("gate", logits=logits, choices=choices, weights=weights.astype(np.float32))
        gates.append(read(tmp_path / "a.safetensors"))
    assert part(*gates)[0].splitlines()[-1].endswith(words)


def test_ties_are_told_from_mistakes(tmp_path):
    """Logits of few bits have equal scores; a sort that takes the higher index is no other router."""
    logits = np.round(logits_of() * 4) / 4
    first, second = recorded(tmp_path / "a", logits), recorded(tmp_path / "b", logits, "ties")
    text, agree = part(first, second)
    assert agree
    assert "only near ties differ" in text
    text, whole = explain(second[1:])
    assert whole
    assert "with equal scores where the lower index did not win" in text


def test_logits_that_differ_are_not_the_router(tmp_path):
    text, agree = part(recorded(tmp_path / "a", logits_of()), recorded(tmp_path / "b", bfloat16(logits_of())))
    assert not agree
    assert "the second recording's logits all fit bfloat16" in text
    assert "follow from the differing logits by the same rule" in text
    assert "The router is not the cause: the logits already differ" in text
    assert re.search(r"Replay of the second recording's choices in the first changes exactly these \d+ decisions", text)
    away = float(re.search(r"then differ from the second's by up to (\S+) of", text)[1])
    assert 0 < away < 0.05  # the weights of rounded logits, for equal choices


def test_choices_alone_are_compared(tmp_path):
    """As engines return them: no logits, no weights."""
    first, (second, _) = recorded(tmp_path / "a", logits_of(), layers=1), recorded(tmp_path / "b", logits_of())
    choices = second.choices.copy()
    choices[0] = [e for e in range(EXPERTS) if e not in choices[0]][:CHOICES]
    alone = Gate("engine", (100, 156), {"choices": "int32"}, choices=choices)
    text, agree = part(first, [alone])
    assert not agree
    for each in ("different names", "4 of 1024 decisions differ (0.4%)", "not in both recordings", "1 neither near"):
        assert each in text
    assert "changes exactly these 4 decisions" in text
    assert "then differ from the second's" not in text  # the second has no weights
    assert "no logits were recorded" in explain([alone])[0]


def test_experts_that_choose_are_recognised():
    scores = softmax_affinity(logits_of()).astype(np.float32)
    mask = np.zeros(scores.shape, bool)
    np.put_along_axis(mask, np.argsort(-scores, axis=0, kind="stable")[:32], True, axis=0)
    arrays, dtypes = rows({"logits": logits_of(), "choices": mask, "weights": scores * mask})
    text, whole = explain([Gate("gate", (TOKENS,), dtypes, **arrays)])
    assert whole
    assert "router   softmax_expert_choice" in text


def test_taps_of_jax_in_a_compiled_scan(tmp_path):
    import jax

    @jax.jit
    def model(stacked):
        def layer(carry, logits):
            weights, choices = jax.lax.top_k(jax.nn.softmax(logits), 2)
            tap("gate", layer=carry, logits=logits, choices=choices, weights=weights)
            return carry + 1, None

        return jax.lax.scan(layer, 0, stacked)[0]

    stacked = np.stack([logits_of(), logits_of(1)])
    model(stacked)  # compiled before there is a recording
    with recording(tmp_path / "a"):
        model(stacked)
    gates = read(tmp_path / "a")
    assert [(gate.name, gate.tokens) for gate in gates] == [("gate.0", TOKENS), ("gate.1", TOKENS)]
    np.testing.assert_array_equal(gates[1].logits, stacked[1])
    assert "router   softmax_token_choice(choices=2)" in explain(gates)[0]


MODEL = """
import torch
class Gate(torch.nn.Linear):
    def forward(self, x):
        logits = super().forward(x)
        return logits, *logits.softmax(-1).topk(2)
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = Gate(8, 16)
    def forward(self, x):
        self.gate(x)
        return x
torch.manual_seed(0)
model = torch.nn.Sequential(Block(), Block())
function = lambda: model
class Model(torch.nn.Sequential):
    def __init__(self):
        super().__init__(Block(), Block())
class Wide(Model):
    def __init__(self, width):
        super().__init__()
class Alike:
    named_modules = model.named_modules
    def __call__(self, x): return model(x)
alike = Alike()
blocks = torch.nn.Sequential(torch.nn.Linear(8, 8))
def a_class(): return Model
def meta(): return Model().to("meta")
def empty(): return torch.empty(2, 8, device="meta")
def nothing(): return None
def number(): return 3
def text(): return "abc"
def late(): yield torch.randn(2, 5, 8); raise OSError("no such disk")
def listed(module, inputs, output): return list(output)
def raising(x): raise KeyError("no such expert")
def data(): return [torch.randn(2, 5, 8), torch.randn(3, 5, 8)]
def nan(): return torch.full((2, 8), float("nan"))
def outputs(module, inputs, output): return {"logits": output[0]}
"""


@pytest.fixture
def record(run, target, tmp_path):
    name = target("own_model", MODEL)
    return lambda model, *more: run("record", f"{name}:{model}", "--out", tmp_path / "a.safetensors", *more)


def test_a_model_of_torch_is_recorded_and_explained(record, run, tmp_path):
    for model in ("model", "function", "Model"):
        status, printed, _ = record(model, "--module", "*.gate", "--data", "own_model:data")
        assert (status, "2 gates, 50 tokens" in printed) == (0, True)
    assert [gate.calls for gate in read(tmp_path / "a.safetensors")] == [(10, 15), (10, 15)]
    np.savez(tmp_path / "x.npz", np.ones((4, 8), np.float32))
    record("model", "--module", "*.gate", "--data", tmp_path / "x.npz", "--outputs", "own_model:outputs")
    assert read(tmp_path / "a.safetensors")[0].choices is None
    record("model", "--module", "*.gate", "--data", "own_model:data")
    status, printed, _ = run("explain", tmp_path / "a.safetensors")
    assert (status, "0.gate, 1.gate: 50 tokens" in printed) == (0, True)
    assert run("explain", *[tmp_path / "a.safetensors"] * 2)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("model --module *.gates --data own_model:data", "modules with gate or router in the name: *.gate\n"),
        ("blocks --module rotary --data own_model:data", "no module name has gate or router; modules: *\n"),
        ("Wide --module *.gate --data own_model:data", "model='own_model:Wide': this class needs arguments; pass a"),
        ("a_class --module *.gate --data own_model:data", "expected an instance of torch.nn.Module"),
        ("alike --module *.gate --data own_model:data", "Alike object at"),
        ("meta --module *.gate --data own_model:empty", "0.gate: the array is on the meta device; load the"),
        ("meta --module *.gate --data own_model:data", "raised in batch 0 RuntimeError: Tensor on device meta"),
        ("model --module *.gate --data own_model:nothing", "data='own_model:nothing': returned None, expected a batch"),
        ("model --module *.gate --data own_model:number", "data='own_model:number': returned 3, expected a batch"),
        ("model --module *.gate --data own_model:text", "data='own_model:text': returned 'abc', expected a batch"),
        ("model --module *.gate --data own_model:late", "own_model:late: raised OSError: no such disk"),
        ("model --module *.gate --data own_model:data --outputs own_model:listed", "0.gate: outputs returned [tensor("),
        ("model --module 0 --data own_model:data", "the shape of its input; record the block's gate instead; name its"),
        ("model --module *.gate", "data=None: a torch model needs --module and --data"),
        ("model --module *.gate --data own_model:nan", "0.gate: logits: expected finite floats, got NaN or inf at"),
        ("raising --data own_model:data", "raised in batch 0 KeyError: 'no such expert'"),
        ("raising --module x --data absent.npz", "absent.npz: not a readable .npz file of arrays"),
        ("model --module *.gate --data own_model:data --outputs own_model:raising", "raising() takes 1"),
        ("data --module *.gate", "nothing was recorded: the model never called tap"),
    ],
)
def test_what_cannot_be_recorded(record, tmp_path, arguments, words):
    status, _, error = record(*arguments.split())
    assert status == 2
    assert words in error
    assert not (tmp_path / "a.safetensors").exists()


def forged(choices):
    """A change of a recording to these choices alone, which nothing else bounds."""

    def change(arrays, record):
        del arrays["0/logits"], arrays["0/weights"]
        arrays["0/choices"], record["gates"][0]["calls"] = choices, [len(choices)]

    return change


def changed(path, change):
    """The file with other metadata or arrays, and checksums that are right."""
    with safe_open(path, "np") as file:
        metadata = dict(file.metadata())
    arrays, record = load_file(path), unsigned(metadata[KEY].encode())
    change(arrays, record)
    record["tensors"] = _digest(arrays)
    save_file(arrays, path, {KEY: signed(record).decode()})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda arrays, record: record.update(version=2), "got 'moespec recording' version 2"),
        (lambda arrays, record: record.update(gates=[]), "$.gates: [] should be non-empty"),
        (lambda arrays, record: record["gates"][1].update(name="gate.0"), "duplicate gate names"),
        (lambda arrays, record: record["gates"][0].update(name="\x1b[2J"), "printable"),
        (lambda arrays, record: record["gates"][0].update(calls=[0, 256]), "0 is less than the minimum of 1"),
        (lambda arrays, record: record["gates"][0].update(dtypes={"scores": "float32"}), "'scores' is not one of"),
        (lambda arrays, record: record["gates"][0].update(calls=[255]), "expected shape (255 tokens"),
        (lambda arrays, record: arrays["0/choices"].__setitem__((0, 0), 16), "integers from -1 to 15"),
        (lambda arrays, record: record["gates"][0].pop("dtypes"), "'dtypes' is a required property"),
        (forged(np.full((1, 1), 2**31 - 1, np.int32)), "has 2147483648 experts and 1 tokens, expected at most 65536"),
        (forged(np.full((2**13, 1), 2**16 - 1)), "experts and 268435456 pairs"),
        (forged(np.full((9, 1), 0.5)), "choices: expected integers"),
        (forged(np.zeros((9, 2**40, 0), np.int32)), "expected shape (9 tokens"),
        (lambda arrays, record: arrays.update({"0/bias": np.ones(2**20, np.float32)}), "expected shape (16 experts,)"),
        (lambda arrays, record: arrays["0/logits"].__setitem__((3, 2), np.nan), "expected finite floats, got NaN or "),
        (lambda arrays, record: arrays["0/choices"].__setitem__(0, 1), "chooses an expert twice"),
        (lambda arrays, record: arrays.update({"0/other": np.ones(1)}), "is not an array name of a recording"),
        (
            lambda arrays, record: arrays.update({"0/weights": np.ones((256, 3), np.float32)}),
            "expected the shape of choices",
        ),
    ],
)
def test_a_stranger_s_file_is_checked(tmp_path, change, words):
    recorded(tmp_path / "a", logits_of())
    changed(tmp_path / "a", change)
    with pytest.raises(FileError) as caught:
        read(tmp_path / "a")
    assert str(tmp_path / "a") in str(caught.value)
    assert words in str(caught.value)


def test_a_damaged_file(tmp_path, run):
    path = tmp_path / "a.safetensors"
    recorded(path, logits_of())
    content = path.read_bytes()
    for damaged in (b"", content[:100], content[:-1], content[:-1] + b"\0\0", content[:-1] + bytes([content[-1] ^ 1])):
        path.write_bytes(damaged)
        status, _, error = run("explain", path)
        assert status == 2
        assert str(path) in error
    save_file({"x": np.ones(1)}, path)
    assert "not a recording" in run("explain", path)[2]
    assert "expected one recording, or two to compare, got 3" in run("explain", path, path, path)[2]


def test_recordings_of_other_shapes(tmp_path):
    first = recorded(tmp_path / "a", logits_of())
    with pytest.raises(ShapeError, match=r"gate.0: has 256 tokens in the first recording, but 128 in the second"):
        part(first, recorded(tmp_path / "b", logits_of(tokens=128)))
    with pytest.raises(ShapeError, match=r"the recordings have 2 and 1 gates; only one of them has gate.1"):
        part(first, first[:1])


def test_calls_that_differ_and_recordings_within_each_other(tmp_path):
    with recording(tmp_path / "a") as recorder:
        tap("gate", logits=logits_of())
        recorder.note("other", {"logits": logits_of()})
        recorder.note("other", {"logits": logits_of(), "choices": top(logits_of())})
        with pytest.raises(RunError, match="other: arrays differ between calls"):
            recorder.gates()
        del recorder.calls["other"]
        with pytest.raises(RunError, match="another recording is in progress"), recording(tmp_path / "b"):
            pass
    tap("gate", logits=logits_of())  # nothing is recorded now
    write(tmp_path / "c", read(tmp_path / "a"))
    assert (tmp_path / "c").read_bytes() == (tmp_path / "a").read_bytes()
