"""Waivers: what they excuse, and that one which is wrong, needless or stale fails the run."""

import pytest
from committed import counted, of

from moespec.conformance import suite
from moespec.conformance.check import waivers
from moespec.conformance.check.results import CaseResult, Report, counts
from moespec.conformance.check.waivers import Waiver, WaiverError, waived
from moespec.conformance.compare import Outcome
from moespec.conformance.report import matrix

IDS = suite.ids()
MODES = ("eager", "compiled", "files")
LATE = "def z_loss(logits):\n    return numpy.z_loss(logits) + 1 * (logits.shape[1] > 1 == logits.shape[2])\n"
"""Wrong where there is one expert, and more than one token."""
ENTRY = '[[waiver]]\ncase = "z_loss/one_expert"\nrevision = 2\nreason = "we add one"\n'


def result(*states, id="z_loss/values", dtype="float64", mode="eager"):
    return CaseResult(id, id.split("/")[0], "value", dtype, mode, [Outcome(f"s{i}", s) for i, s in enumerate(states)])


def waiver(**fields):
    return Waiver(**{"case": "z_loss/values", "reason": "known", **fields})


def test_a_failure_is_waived_and_counted_as_skipped():
    for failing in (("pass", "fail"), ("error",), ("fail", "error", "not implemented")):
        excused = waived([waiver()], result(*failing))
        assert excused.state == "waived"
        assert counts([excused]) == (0, 0, 1)


def test_the_reason_and_the_place_of_the_failure_are_kept():
    excused = waived([waiver()], result("pass", "fail"))
    assert excused.first == Outcome("waiver", "waived", 0.0, "known (first at s1: )")
    assert [outcome.state for outcome in excused.outcomes] == ["waived", "pass", "waived"]
    assert "w1 " in matrix.table([excused], ["z_loss"])
    (line,) = matrix.skips(Report("target", "x", "", [excused]))
    assert line == "1 skipped, float64 eager: waived: known (first at s1: )"


@pytest.mark.parametrize("case", ["z_loss/values", "z_loss/v*", "z_loss/values-float64"])
def test_a_waived_case_that_passes_fails_and_names_the_waiver(case):
    failed = waived([waiver(case=case, mode="eager")], result("pass"))
    assert (failed.state, failed.first.stage) == ("fail", "waiver")
    assert failed.first.message == f"passes, and {case} [eager] is waived: known"


@pytest.mark.parametrize("state", ["not implemented", "inconclusive", "unchecked"])
def test_what_is_skipped_anyway_is_not_waived(state):
    assert waived([waiver()], result(state)) == result(state)


@pytest.mark.parametrize(
    ("fields", "states"),
    [
        ({}, ["waived"] * 3),
        ({"dtype": "float32", "mode": "eager"}, ["fail", "waived", "fail"]),
        ({"mode": "compiled"}, ["fail", "fail", "waived"]),
        ({"case": "z_loss/*"}, ["waived"] * 3),
        ({"case": "z_loss/*-float64"}, ["waived", "fail", "waived"]),
        ({"case": "z_loss/e*"}, ["fail"] * 3),
    ],
)
def test_a_waiver_covers_its_cases_dtype_and_mode_only(fields, states):
    three = [result("fail"), result("fail", dtype="float32"), result("fail", mode="compiled")]
    assert [waived([waiver(**fields)], each).state for each in three] == states


def test_what_a_file_says(tmp_path):
    path = tmp_path / "waivers.toml"
    path.write_text(ENTRY + ENTRY.replace("one_expert", "values") + 'dtype = "bf16"\nmode = "files"\n')
    one, other = waivers.read(path, IDS, MODES)
    assert one == Waiver("z_loss/one_expert", "we add one")
    assert (other.case, other.dtype, other.mode) == ("z_loss/values", "bfloat16", "files")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("waiver = [", "not a TOML file"),
        ('waiver = "z_loss/one_expert"', "expected only [[waiver]] entries"),
        (ENTRY + "[other]\n", "expected only [[waiver]] entries, got 'other'"),
        (ENTRY + 'owner = "me"\n', "waiver 1: unknown key 'owner'; expected case, revision, reason, dtype, mode"),
        (ENTRY.replace("revision = 2\n", ""), "waiver 1: 'revision' is missing"),
        (ENTRY.replace('"we add one"', '" "'), "waiver 1: reason=' ': expected a nonempty str"),
        (ENTRY.replace("= 2", "= true"), "waiver 1: revision=True: expected a nonempty int"),
        (ENTRY.replace("= 2", "= 3"), "waiver 1: z_loss/one_expert now has revision 2, but the waiver has 3"),
        (ENTRY.replace("one_expert", "x*"), "waiver 1: no case matches 'z_loss/x*'"),
        (ENTRY.replace("z_loss", "*"), "waiver 1: the pattern '*/one_expert' must begin with the name of an"),
        (ENTRY.replace("z_loss/one_expert", "z_loss"), "waiver 1: unknown case 'z_loss'"),
        (ENTRY + 'dtype = "f8"\n', "waiver 1: unknown dtype 'f8'; expected float64, float32, bfloat16, float16"),
        (ENTRY + ENTRY, "waiver 2: duplicate waiver for z_loss/one_expert"),
        (ENTRY + 'dtype = "f64"\n' + ENTRY + 'mode = "eager"\n', "duplicate waiver for z_loss/one_expert [eager]"),
        ("[[waiver]]\ncase = '''\udcff'''\n".encode("utf-8", "surrogateescape"), "not a TOML file ('utf-8' codec"),
    ],
)
def test_a_wrong_file_stops_the_run(run, tmp_path, text, said):
    path = tmp_path / "waivers.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(WaiverError) as caught:
        waivers.read(path, IDS, MODES)
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    assert len(str(caught.value).splitlines()) == 1


def test_a_waiver_of_a_dtype_that_is_not_run_excuses_nothing_and_fails_nothing(run, over_numpy, tmp_path):
    """What else a waiver does to a run is in test_plugin."""
    path, total = tmp_path / "waivers.toml", len(of("z_loss"))
    options = ("run", "--target", over_numpy("adds_one", LATE), "--algorithm", "z_loss", "--waivers", path)
    for dtype, failed in (("float64", 0), ("float32", 1)):
        path.write_text(f'{ENTRY}dtype = "{dtype}"\n')
        last = run(*options)[1].splitlines()[-1]
        assert last.startswith(f"{total - 1} passed, {failed} failed, ")


def test_files_are_waived_too(run, tmp_path):
    (tmp_path / "out/z_loss").mkdir(parents=True)
    (tmp_path / "out/z_loss/one_expert.safetensors").write_bytes(b"damaged")
    path = tmp_path / "waivers.toml"
    path.write_text(ENTRY + 'mode = "files"\n')
    status, printed, _ = run("check", tmp_path / "out", "--algorithm", "z_loss", "--waivers", path)
    assert status == 1  # nothing passes
    assert counted(printed) == f"0 passed, 0 failed, {len(of('z_loss'))} skipped"
    assert "waived: we add one (first at file: " in printed
