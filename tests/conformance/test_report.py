"""Reports: what is written is read back, what is not a report is refused, and the page escapes all that it shows."""

import json
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest

from moespec.conformance import matrix, report, suite
from moespec.conformance.__main__ import main
from moespec.conformance.badge import badge
from moespec.conformance.page import page
from moespec.conformance.report import Refusal, Report, ReportError
from moespec.conformance.results import STATES, CaseResult, Convention, Outcome
from moespec.spec import ALGORITHMS, LEDGER

CASES = suite.load()
SUITE = suite.digest()
EVIL = "</pre><script>alert(1)</script><img src=x onerror='alert(1)'>&\"'"


def result(id="z_loss/values", state="pass", *, lane="f64", mode="eager", stage="loss/loss", message="", share=0.25):
    algorithm = id.split("/")[0]
    return CaseResult(id, algorithm, "value", lane, mode, [Outcome(stage, state, share, message)])


def of(*results, door="target", target="my.router", **fields):
    return Report(door, target, SUITE, list(results), **fields)


ALL = of(
    *(result(case.id, state, message=f"as {state}") for case, state in zip(CASES, STATES, strict=False)),
    result(state="fail", share=float("inf"), lane="f32"),
    refused=[Refusal("bf16", "no such dtype", 379)],
    faults=["the waiver of x matches nothing that fails"],
    conventions=[Convention("z_loss", "f32", "eager", "mean_of_squares", "squares the mean", "TC-2", "nobody", 1, 2)],
)


@pytest.fixture
def written(tmp_path):
    """A report as JSON, and its file."""
    path = tmp_path / "report.json"
    report.write(of(result(), result("z_loss/large", "fail")), path)
    return json.loads(path.read_text()), path


# The file.


def test_what_is_written_is_read_back(tmp_path):
    path = tmp_path / "report.json"
    report.write(ALL, path)
    found = report.read(path, CASES, SUITE)
    kinds = {case.id: case.kind for case in CASES}
    for one in ALL.results:
        one.kind = kinds[one.id]
    assert found == ALL
    assert json.loads(path.read_text())["failed"] == 4
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 2}, "schema 2, expected 1"),
        ({"schema": True}, "schema is True, expected int"),
        ({"door": "window"}, "unknown door 'window'"),
        ({"target": "x; import os"}, "is no name for the door 'target'"),
        ({"target": 'x"><script>'}, "is no name for the door 'target'"),
        ({"target": ["x"]}, "target is ['x'], expected str"),
        ({"suite": "0" * 64}, "made with other vectors"),
        ({"cases": {}}, "cases is {}, expected list"),
        ({"cases": [3]}, "a case has no 'id'"),
        ({"cases": []}, "passed is 1, and its cases make 0"),
        ({"passed": 2}, "passed is 2, and its cases make 1"),
        ({"failed": 0}, "failed is 0, and its cases make 1"),
        ({"skipped": -1}, "skipped is -1, expected at least 0"),
        ({"faults": ["x"]}, "failed is 1, and its cases make 2"),
        ({"faults": [1]}, "1, expected a text"),
        ({"conventions": [{"algorithm": "hashing"}]}, "a convention: unknown algorithm 'hashing'"),
        ({"conventions": [{"algorithm": "vit", "lane": "f64", "mode": "eager"}]}, "a convention has no 'mutant'"),
        ({"refused": [{"lane": "f8", "reason": "", "cases": 1}]}, "unknown lane 'f8'"),
        ({"refused": [{"lane": "f32", "reason": "", "cases": -3}]}, "cases is -3, expected at least 0"),
    ],
)
def test_a_wrong_report(written, change, said):
    refused(written, {**written[0], **change}, said)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": "z_loss/<script>"}, "a case: unknown id 'z_loss/<script>'"),
        ({"id": "z_loss/large"}, "case z_loss/large: twice in f64 eager"),
        ({"lane": "f16"}, "case z_loss/values: unknown lane 'f16'"),
        ({"mode": "fast"}, "case z_loss/values: unknown mode 'fast'"),
        ({"state": "fail"}, "case z_loss/values: state 'fail', and its outcomes make 'pass'"),
        ({"outcomes": []}, "case z_loss/values: state 'pass', and its outcomes make 'error'"),
        ({"outcomes": [{"stage": "a", "state": "fine", "share": 0, "message": ""}]}, "unknown state 'fine'"),
        ({"outcomes": [{"stage": "a", "state": "pass", "share": -1, "message": ""}]}, "share is -1, expected a number"),
        (
            {"outcomes": [{"stage": "a", "state": "pass", "share": "0", "message": ""}]},
            "share is '0', expected a number",
        ),
        ({"outcomes": [{"stage": "a", "state": "pass", "message": ""}]}, "share is 'missing', expected a number"),
        ({"outcomes": [{"stage": "a", "state": "pass", "share": 0, "message": None}]}, "message is None, expected str"),
        ({"outcomes": [{"stage": "a", "state": "pass", "share": 10**400, "message": ""}]}, "int too large"),
        ({"outcomes": ["pass"]}, "case z_loss/values has no 'stage'"),
    ],
)
def test_a_wrong_case(written, change, said):
    content, _ = written
    refused(written, {**content, "cases": [content["cases"][0] | change, *content["cases"][1:]]}, said)


def refused(written, content, said):
    path = written[1]
    path.write_text(json.dumps(content))
    with pytest.raises(ReportError) as caught:
        report.read(path, CASES, SUITE)
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "null",
        "[]",
        "{}",
        '"text"',
        "[" * 100_000,
        "\x00",
        '{"schema": NaN}',
        '{"schema": ' + "9" * 10_000 + "}",
    ],
)
def test_nonsense(run, tmp_path, text):
    path = tmp_path / "report.json"
    path.write_text(text)
    status, printed, said = run("report", path, "--html", tmp_path / "report.html")
    assert (status, printed) == (2, "")
    assert said.startswith(f"{path}: ")
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "report.html").exists()


def test_what_is_no_file(run, tmp_path):
    for path in (tmp_path / "none.json", tmp_path):
        status, _, said = run("report", path)
        assert status == 2
        assert said.startswith(f"{path}: ")
    (tmp_path / "report.json").write_bytes(b"\xff\xfe")
    assert run("report", tmp_path / "report.json")[0] == 2


def test_control_characters_reach_neither_terminal_nor_page(run, tmp_path):
    path, html = tmp_path / "report.json", tmp_path / "report.html"
    report.write(of(result(state="fail", message="\x1b[31m red \x07\ud800\x85 line\nnext")), path)
    status, printed, _ = run("report", path, "--html", html)
    assert status == 1
    for text in (printed, html.read_text(encoding="utf-8")):
        assert not {"\x1b", "\x07", "\x85", "\ud800"} & set(text)
        assert "[31m red" in text


def test_two_reports_of_one_thing(run, tmp_path):
    one, other, third = (tmp_path / f"{name}.json" for name in ("one", "other", "third"))
    report.write(of(result()), one)
    report.write(of(result("z_loss/large"), result()), other)
    report.write(of(result(lane="f32"), result(mode="compiled")), third)
    status, _, said = run("report", one, other)
    assert status == 2
    assert said == f"{other}: my.router: z_loss/values f64 eager is in {one} too\n"
    status, printed, _ = run("report", one, third)
    assert status == 0
    assert printed.splitlines()[-1] == "3 passed, 0 failed, 0 skipped"
    assert run("report", one, one)[0] == 0  # the same file, counted once


# The command line.


def test_from_a_run_to_a_page(run, target, tmp_path):
    name = target(
        "late_loss", "from moespec.backends.numpy import *\ndef z_loss(logits):\n    return logits.sum() * 0 + 1\n"
    )
    json_, html, svg = (tmp_path / f"report.{kind}" for kind in ("json", "html", "svg"))
    options = ("--target", name, "--lane", "f64", "--algorithm", "z_loss", "--algorithm", "capacity")
    status, printed, _ = run("run", *options, "--report", json_)
    last = printed.splitlines()[-1]
    assert status == 1
    status, again, _ = run("report", json_, "--html", html, "--badge", svg)
    assert status == 1
    assert again.splitlines()[-1] == last
    assert [line for line in printed.splitlines() if line.startswith("FAIL")] == [
        line for line in again.splitlines() if line.startswith("FAIL")
    ]
    text = html.read_text()
    assert last in text
    assert "late_<wbr>loss" in text
    assert last.rsplit(", ", 1)[0] in svg.read_text()  # all but the skipped


@pytest.mark.parametrize("option", ["--html", "--badge"])
def test_no_place_to_write(run, tmp_path, option):
    for path, why in ((tmp_path / "none/x", "its folder is not there"), (tmp_path, "is a folder")):
        status, _, said = run("report", "x.json", option, path)
        assert status == 2
        assert f"{str(path)!r}: {why}" in said
    assert run("run", "--target", "moespec.backends.numpy", "--report", tmp_path / "none/x")[0] == 2


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("before")
    with pytest.raises(UnicodeEncodeError):
        report.write_text(path, "after \ud800")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_in_a_report_is_no_pass(run, tmp_path):
    path = tmp_path / "report.json"
    report.write(of(), path)
    status, printed, _ = run("report", path)
    assert status == 1
    assert printed.splitlines()[-2:] == ["nothing was collected", "0 passed, 0 failed, 0 skipped"]


# The page.


class Reader(HTMLParser):
    """The elements of a page; every element must be closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.ids, self.links, self.text = [], set(), [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.elements |= {(tag, name) for name, _ in attributes} | {(tag, None)}
        found = dict(attributes)
        self.ids += [found["id"]] if "id" in found else []
        self.links += [found["href"]] if "href" in found else []
        if tag not in ("meta", "br", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


ACTIVE = {"base", "embed", "form", "frame", "iframe", "img", "input", "link", "object", "script", "svg", "template"}
ATTRIBUTES = {"lang", "charset", "name", "content", "class", "id", "href", "colspan", "rowspan", "scope", "style", None}


def read(*reports):
    text = page(reports, CASES, suite.flags())
    reader = Reader(text)
    assert not {tag for tag, _ in reader.elements} & ACTIVE
    assert {name for _, name in reader.elements} <= ATTRIBUTES
    assert all(link.startswith("#") for link in reader.links)
    assert len(set(reader.ids)) == len(reader.ids)
    assert {link[1:] for link in reader.links} <= {*reader.ids, ""}
    return text, reader


def test_the_page_has_every_algorithm_case_and_flag():
    text, reader = read(ALL)
    assert {*ALGORITHMS, *(case.id for case in CASES)} <= set(reader.ids)
    shown = " ".join(reader.text)
    for case in CASES:
        assert case.purpose in shown
    for meaning in suite.flags().values():
        assert meaning["goes_wrong"] in shown
        assert meaning["matters"] in shown
    for state in STATES:
        assert f"f64 {state}" in shown
    assert "no such dtype" in shown
    assert "the waiver of x matches nothing that fails" in shown
    assert "url(" not in text
    assert "@import" not in text


def test_a_failure_has_its_place_its_numbers_a_reproduction_and_the_specification():
    failed = result("token_choice/tied", "fail", stage="allocation/slots", message="got 2, expected 1", lane="f32")
    text, reader = read(of(failed))
    shown = "".join(reader.text)
    assert "First at allocation/slots" in shown
    assert "got 2, expected 1" in shown
    assert "open_case('token_choice/tied', 'allocation', target='my.router', lane='f32', mode='eager')" in shown
    assert "python -m moespec.conformance show token_choice/tied --target my.router --lane f32 --mode eager" in shown
    assert 'Specified in <a href="#spec.token_choice">' in text
    assert "all first choices before any second choice" in shown  # the text of the specification


def test_a_known_deviation_is_named_with_its_question():
    text, reader = read(ALL)
    shown = "".join(reader.text)
    assert "mean_of_squares: squares the mean (in 1 of 2 stages; ledger TC-2; as in nobody)" in shown
    assert LEDGER["TC-2"].question in shown
    assert text.count("squares the mean") == 2  # in the summary, and in the lane that fails
    assert "z_loss [f32 eager] equals mean_of_squares: squares the mean" in matrix.summary(ALL)


def test_each_stage_is_linked_to_where_it_is_specified():
    for id, stage, module in (
        ("sinkhorn_expert_choice/values", "plan/plan", "sinkhorn"),
        ("sinkhorn_expert_choice/values", "route/output", "routers"),
        ("token_choice/gradient", "gradient/scores", "token_choice"),
        ("vit/soft_moe", "forward/logits", "network"),
        ("capacity/ceil", "capacity/capacity", "capacity"),
        ("token_choice/tied", "waiver", "token_choice"),
    ):
        text = page([of(result(id, "fail", stage=stage))], CASES, suite.flags())
        failure = text.split('<div class="failure">')[1].split("</div>")[0]
        assert f'href="#spec.{module}"' in failure


@pytest.mark.parametrize("state", ["fail", "error", "waived", "inconclusive"])
def test_what_a_stranger_writes_is_text(tmp_path, state):
    path = tmp_path / "report.json"
    evil = of(
        result(state=state, stage=f"loss/{EVIL}\nimport os", message=EVIL),
        door="files",
        target=f"/tmp/{EVIL}",
        refused=[Refusal("f32", EVIL, 1)],
        faults=[EVIL],
        conventions=[Convention("z_loss", "f64", "eager", EVIL, EVIL, EVIL, EVIL, 1, 1)],
    )
    report.write(evil, path)
    text, _ = read(report.read(path, CASES, SUITE))
    assert "<script" not in text
    assert "onerror='" not in text
    ElementTree.fromstring(badge([evil]))


def test_several_reports_are_columns():
    torch = of(result(lane="bf16", share=0.5), result(lane="f32"), target="my.torch")
    text, _ = read(of(result()), of(result(mode="compiled")), torch)
    heads = text.split("<thead>")[1].split("</thead>")[0]
    assert heads.count('scope="colgroup"') == 3
    assert heads.count('scope="col"') == 4
    assert '<th colspan="2" scope="colgroup">my.<wbr>torch <i>eager</i></th>' in heads
    assert '<span class="pass share" style="--share:50%">bf16 pass, 50 %</span>' in text


def test_a_page_of_nothing():
    text, _ = read(of())
    assert "0 passed, 0 failed, 0 skipped" in text


# The badge.


@pytest.mark.parametrize(
    ("results", "value", "colour"),
    [
        ((), "0 passed", "#6e7781"),
        ((result(),), "1 passed", "#1a7f37"),
        ((result(), result(lane="f32", state="error")), "1 passed, 1 failed", "#b3261e"),
        ((result(), result(lane="f32", state="inconclusive")), "1 passed", "#1a7f37"),
    ],
)
def test_the_badge(results, value, colour):
    text = badge([of(*results)])
    picture = ElementTree.fromstring(text)
    assert picture.find("{*}title").text == f"moespec conformance: {value}"
    assert [label.text for label in picture.iter("{http://www.w3.org/2000/svg}text")] == ["moespec conformance", value]
    assert colour in text


def test_reports_need_no_vectors_of_their_own_to_be_refused(run, tmp_path, vectors):
    """A report of the whole suite is none of a part of it."""
    path = tmp_path / "report.json"
    report.write(of(result()), path)
    assert main(["report", str(path)]) == 0
    status, _, said = run("report", path, "--vectors", vectors)
    assert status == 2
    assert "made with other vectors" in said
