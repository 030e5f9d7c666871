"""Reports: what is written is read back, what is not a report is an error, and the page escapes all that it shows."""

import json
import os
import re
import sys
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest
from committed import BY_ID, CASES
from damaged import damaged, message_of

from moespec.conformance import suite
from moespec.conformance.check import files
from moespec.conformance.check.results import STATES, CaseResult, Match, Report, Unsupported
from moespec.conformance.check.target import MODES
from moespec.conformance.compare import ALL_DTYPES, Outcome
from moespec.conformance.matrix_rows import ALGORITHMS
from moespec.conformance.report import matrix, report
from moespec.conformance.report.badge import badge
from moespec.conformance.report.page import flags, page
from moespec.conformance.report.report import ReportError
from moespec.spec import LEDGER
from moespec.version import version

SUITE = suite.digest()
EVIL = "</pre><script>alert(1)</script><img src=x onerror='alert(1)'>&\"'"


def result(id="z_loss/values", state="pass", *, dtype="float64", mode="eager", **fields):
    case, outcome = BY_ID[id], {"stage": "z_loss/loss", "state": state, "fraction": 0.25, **fields}
    return CaseResult(id, case.algorithm, case.kind, dtype, mode, [Outcome(**outcome)])


def of(*results, interface="target", target="my.router", **fields):
    return Report(interface, target, SUITE, list(results), **fields)


ALL = of(
    *(result(case.id, state, message=f"as {state}") for case, state in zip(CASES, STATES, strict=False)),
    result(state="fail", fraction=float("inf"), dtype="float32"),
    unsupported=[Unsupported("bfloat16", "no such dtype", 379)],
    problems=["the waiver of x matches nothing that fails"],
    matches=[Match("z_loss", "float32", "eager", "mean_of_squares", "squares the mean", "TC-2", "nobody", 1, 2)],
)


@pytest.fixture
def written(tmp_path):
    """A report as JSON, and its file."""
    path = tmp_path / "report.json"
    left_out = {"z_loss/gradient": "gradients"}
    report.write(of(result(), result("z_loss/large", "fail"), left_out=left_out), path)
    return json.loads(path.read_text()), path


# The file.


def test_what_is_written_is_read_back(tmp_path):
    path = tmp_path / "report.json"
    report.write(ALL, path)
    assert report.read(path, CASES, SUITE) == ALL
    assert json.loads(path.read_text())["failed"] == 5
    assert list(tmp_path.iterdir()) == [path]


def test_the_citation_counts_each_dtype_and_mode_and_names_what_was_run():
    revisions = [f"{name} revision {ALGORITHMS[name].revision}" for name in ("sinkhorn", "z_loss")]
    results = [result(), result("z_loss/large", "fail"), result("sinkhorn/large", "waived"), result(dtype="float32")]
    found = of(*results, seed=7, unsupported=[Unsupported("float16", "", 3)]).citation
    passed = "1 of 3 cases (float64 eager), 1 of 1 cases (float32 eager), 0 of 3 (float16, not supported)"
    of_suite = f"moespec {version()} conformance; suite {SUITE[:8]}, {', '.join(revisions)}"
    assert found == f"my.router (fresh, seed 7) passes {passed} of {of_suite}"
    assert of(*(result(case.id) for case in CASES)).citation.endswith(f", {len(ALGORITHMS)} algorithms")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"target": "x; import os"}, "is not a valid name for the interface 'target'"),
        ({"suite": "0" * 64}, "made with other vectors"),
        ({"cases": []}, "passed is 1, but its cases give 0"),
        ({"passed": 2}, "passed is 2, but its cases give 1"),
        ({"citation": "my.router passes 2 of 2 cases"}, "but its cases give 'my.router passes 1 of 2 cases"),
        ({"problems": ["x"]}, "failed is 1, but its cases give 2"),
        ({"variants": [{**vars(ALL.matches[0]), "algorithm": "hashing"}]}, "unknown algorithm 'hashing'"),
        ({"left_out": {"z_loss/none": "values"}}, "left_out: 'z_loss/none' is unknown or was run"),
        ({"left_out": {"z_loss/large": "values"}}, "left_out: 'z_loss/large'"),
        ({"left_out": {}}, "cases_in_all is 3, but its cases give 2"),
        ({"seed": -1}, "$.seed: -1 is less than the minimum of 0"),
    ],
)
def test_a_wrong_report(written, change, said):
    rejected(written, {**written[0], **change}, said)


def test_a_report_that_was_edited_is_refused(run, written):
    content, path = written
    content["cases"][1].update(explanation="the paper is wrong")
    path.write_text(json.dumps(content))
    assert run("report", path) == (2, "", f"{path}: modified: its digest does not match its content\n")


def outcome(**fields):
    return {"outcomes": [{"stage": "a", "state": "pass", "fraction": 0, "message": "", **fields}]}


def table(text, *, got="1", rows=1):
    return {"table": {"name": "x", "expected": [[[text]] * rows], "got": [[[got]]], "wrong": [[[True]]]}}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": "z_loss/<script>"}, "unknown case 'z_loss/<script>'"),
        ({"id": "z_loss/large"}, "case z_loss/large: appears twice in float64 eager"),
        ({"state": "fail"}, "case z_loss/values: state 'fail', but its outcomes give 'pass'"),
        (outcome(state="fail", fraction=10**400), "int too large"),
        (table("\ud800"), "does not match"),
        (table("1", rows=9), "is too long"),
        (table("1", rows=2), "the parts of its table differ in shape"),
    ],
)
def test_a_wrong_case(written, change, said):
    content, _ = written
    rejected(written, {**content, "cases": [content["cases"][0] | change, *content["cases"][1:]]}, said)


OPTIONAL = (
    "seed",
    "size",
    "repeat",
    "claims",
    "version",
    "citation",
    "column",
    "trace",
    "table",
    "variants",
    "explanation",
)
"""What earlier reports lack; of a case its fraction, too, which follows from its outcomes."""


def test_nothing_that_is_damaged_is_read(tmp_path, written):
    path = tmp_path / "all.json"
    report.write(ALL, path)
    content = json.loads(path.read_text())
    for case in content["cases"]:
        del case["fraction"]
    for damage, wrong in damaged(content, 200, optional=OPTIONAL):
        own = {"digest": report.digest(wrong)} if wrong.get("digest") == content["digest"] else {}
        path.write_text(json.dumps({**wrong, **own}))
        said = message_of(ReportError, report.read, path, CASES, SUITE)
        assert said, damage
        assert len(said) < 400 + len(str(path))
        assert len(said.splitlines()) == 1


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_is_not_finite(written, number):
    path = written[1]
    path.write_text(path.read_text().replace('"fraction": 0.25', f'"fraction": {number}', 1))
    with pytest.raises(ReportError, match=rf"^{re.escape(str(path))}: expected a finite number, got {number}$"):
        report.read(path, CASES, SUITE)


def test_the_words_of_the_schema_are_those_of_the_code():
    words = json.loads((suite.VECTORS.parent / "report_schema.json").read_text())["$defs"]
    of_code = {"state": STATES, "dtype": ALL_DTYPES, "mode": (*MODES, files.MODE)}
    assert {name: words[name]["enum"] for name in of_code} == {name: [*each] for name, each in of_code.items()}


def test_without_jinja2_it_says_what_to_install(run, monkeypatch, written, tmp_path):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert run("report", written[1])[0] == 1
    status, _, said = run("report", written[1], "--html", tmp_path / "page.html")
    assert (status, said) == (2, '--html needs jinja2: pip install "moespec[conformance]"\n')


def rejected(written, content, said):
    path = written[1]
    path.write_text(json.dumps({**content, "digest": report.digest(content)}))
    with pytest.raises(ReportError) as caught:
        report.read(path, CASES, SUITE)
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    assert len(str(caught.value)) < 400


NONSENSE = ("", "nonsense", "[]", "[" * 100_000, '{"schema": NaN}', f'{{"schema": {"9" * 10_000}}}')


@pytest.mark.parametrize("text", NONSENSE)
def test_nonsense(run, tmp_path, text):
    path = tmp_path / "report.json"
    path.write_text(text)
    status, printed, said = run("report", path, "--html", tmp_path / "report.html")
    assert (status, printed) == (2, "")
    assert said.startswith(f"{path}: ")
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "report.html").exists()


def test_what_is_not_a_file(run, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "none.json", tmp_path, tmp_path / "pipe"):
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
    report.write(of(result(dtype="float32"), result(mode="compiled")), third)
    status, _, said = run("report", one, other)
    assert status == 2
    assert said == f"{other}: my.router: z_loss/values float64 eager is also in {one}\n"
    status, printed, _ = run("report", one, third)
    assert status == 0
    assert printed.splitlines()[-1] == "3 passed, 0 failed, 0 skipped; 1 of 1 cases passed"
    assert run("report", one, one)[0] == 0  # the same file, counted once
    report.write(of(result(), seed=7), other)
    assert run("report", one, other)[1].splitlines()[-1] == "2 passed, 0 failed, 0 skipped; 2 of 2 cases passed"


# The command line.


def test_from_a_run_to_a_page(run, over_numpy, tmp_path):
    """Small results are tables, failures have causes, and what was not tested is folded."""
    text = "def expert_choice(scores, **options):\n    return numpy.expert_choice(-scores, **options)\n"
    text += "def z_loss(logits):\n    raise RuntimeError('none')\n"
    path, html, svg = (tmp_path / f"report.{kind}" for kind in ("json", "html", "svg"))
    options = ("--algorithm", "expert_choice", "--algorithm", "z_loss", "--class", "values,ties", "--dtype", "f64")
    status, printed, _ = run("run", "--target", over_numpy("upside_down", text), *options, "--report", path)
    again_status, again, _ = run("report", path, "--html", html, "--badge", svg)
    assert status == again_status == 1
    last = printed.splitlines()[-1]
    cited = json.loads(path.read_text())["citation"]
    assert f"to cite: {cited}" in printed.splitlines()
    assert f"Citation: {cited}" in html.read_text()
    assert again.splitlines()[-1] == last
    failures = [[line for line in text.splitlines() if line.startswith(("FAIL", "ERROR"))] for text in (printed, again)]
    assert failures[0] == failures[1] != []
    assert re.search(r"(?<=; ).*", last)[0] in svg.read_text()
    shown = html.read_text()
    Reader(shown)
    assert last in shown
    assert "upside_<wbr>down" in shown
    assert '<td class="fail">' in shown.split('<table class="numbers">')[1].split("</table>")[0]
    assert "RuntimeError: none (" in shown
    assert "line 6, in z_loss" in shown
    assert "<summary>Not tested: " in shown


@pytest.mark.parametrize("option", ["--html", "--badge"])
def test_no_place_to_write(run, tmp_path, option):
    os.mkfifo(tmp_path / "pipe")
    places = {tmp_path / "none/x": "the folder '", tmp_path: "expected a file", tmp_path / "pipe": "expected a regular"}
    for path, why in places.items():
        status, _, said = run("report", "x.json", option, path)
        assert status == 2
        assert f"{str(path)!r}: {why}" in said
    status, _, said = run("report", tmp_path / "x.json", option, tmp_path / "x.json")
    assert (status, "x.json': this output path is used twice" in said) == (2, True)
    assert run("run", "--target", "moespec.backends.numpy", "--report", tmp_path / "none/x")[0] == 2


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
        values = dict(attributes)
        self.ids += [values["id"]] if "id" in values else []
        self.links += [values["href"]] if "href" in values else []
        if tag not in ("meta", "br", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


ACTIVE = {"base", "embed", "form", "frame", "iframe", "img", "input", "link", "object", "script", "svg", "template"}
ATTRIBUTES = {"lang", "charset", "name", "content", "class", "id", "href", "colspan", "rowspan", "scope", "style", None}


SOURCES = {link for flag in flags().values() for link in flag.get("links", ()) if link.startswith("https://")}


def read(*reports):
    text = page(reports, CASES, flags())
    reader = Reader(text)
    assert not {tag for tag, _ in reader.elements} & ACTIVE
    assert {name for _, name in reader.elements} <= ATTRIBUTES
    assert len(set(reader.ids)) == len(reader.ids)
    assert set(reader.links) <= {f"#{id}" for id in (*reader.ids, "")} | SOURCES
    return text, reader


def test_the_page_has_every_algorithm_case_and_flag():
    text, reader = read(ALL)
    assert {*(case.algorithm for case in CASES), *BY_ID} <= set(reader.ids)
    shown = " ".join(reader.text)
    for case in CASES:
        assert case.purpose in shown
    for meaning in flags().values():
        assert meaning["description"] in shown
        assert meaning["effect"] in shown
    for state in STATES:
        assert f"float64 {state}" in shown
    assert "no such dtype" in shown
    assert "the waiver of x matches nothing that fails" in shown
    assert "url(" not in text
    assert "@import" not in text


def test_a_failure_has_its_place_its_numbers_a_reproduction_and_the_specification():
    failed = result(
        "token_choice/tied", "fail", stage="token_choice/slots", message="got 2, expected 1", dtype="float32"
    )
    text, reader = read(of(failed))
    shown = "".join(reader.text)
    assert "First differs at token_choice/slots" in shown
    assert "got 2, expected 1" in shown
    opened = "'token_choice/tied', 'token_choice', target='my.router', dtype='float32', mode='eager'"
    assert f"open_case({opened})" in shown
    assert "conformance show token_choice/tied --target my.router --dtype float32 --mode eager" in shown
    assert 'Specified in <a href="#spec.algorithms.token_choice">' in text
    assert "all first choices before any second choice" in shown  # the text of the specification


def test_a_known_variant_is_named_with_its_question():
    text, reader = read(ALL)
    shown = "".join(reader.text)
    assert "mean_of_squares: squares the mean (in 1 of 2 stages; ledger TC-2; as in nobody)" in shown
    assert LEDGER["TC-2"].question in shown
    assert text.count("squares the mean") == 3  # in the summary, over the failures, and in the dtype that fails
    assert "z_loss [float32 eager] agrees in part with the known variant mean_of_squares: squares" in matrix.summary(
        ALL
    )


def test_each_stage_is_linked_to_where_it_is_specified():
    for id, stage, module in (
        ("sinkhorn_expert_choice/values", "sinkhorn_affinity/plan", "algorithms.sinkhorn"),
        ("sinkhorn_expert_choice/values", "route/slots", "routers.sinkhorn_expert_choice"),
        ("vit/soft_moe", "vit_forward/logits", "algorithms.network"),
    ):
        text = page([of(result(id, "fail", stage=stage))], [BY_ID[id]], flags())
        failure = text.split('<div class="failure">')[1].split("</div>")[0]
        assert f'href="#spec.{module}"' in failure


@pytest.mark.parametrize("state", ["fail", "error", "waived", "inconclusive"])
def test_what_a_third_party_writes_is_text(tmp_path, state):
    path = tmp_path / "report.json"
    evil = of(
        result(state=state, stage=f"z_loss/{EVIL}\nimport os", message=EVIL),
        interface="files",
        target=f"/tmp/{EVIL}",
        unsupported=[Unsupported("float32", EVIL, 1)],
        problems=[EVIL],
        matches=[Match("z_loss", "float64", "eager", EVIL, EVIL, EVIL, EVIL, 1, 1)],
    )
    report.write(evil, path)
    text, _ = read(report.read(path, CASES, SUITE))
    assert "<script" not in text
    assert "onerror='" not in text
    ElementTree.fromstring(badge([evil]))


def test_several_reports_are_columns():
    torch = of(result(dtype="bfloat16", fraction=0.5), result(dtype="float32"), target="my.torch")
    text, _ = read(of(result()), of(result(mode="compiled")), torch)
    heads = text.split("<thead>")[1].split("</thead>")[0]
    assert heads.count('scope="colgroup"') == 3
    assert heads.count('scope="col"') == 4
    assert '<th colspan="2" scope="colgroup">my.<wbr>torch <i>eager</i></th>' in heads
    assert '<span class="pass fraction" style="--fraction:50%">bfloat16 pass, 50 %</span>' in text


# The badge.


@pytest.mark.parametrize(
    ("results", "value", "colour"),
    [
        ((), "0 of 0 cases passed", "#6e7781"),
        ((result(),), "1 of 1 cases passed", "#1a7f37"),
        ((result(), result(dtype="float32", state="error")), "0 of 1 cases passed, 1 failed", "#b3261e"),
        ((result(), result(dtype="float32", state="inconclusive")), "1 of 1 cases passed", "#1a7f37"),
        ((result(), result(dtype="float32", state="waived")), "0 of 1 cases passed", "#6e7781"),
        ((result(), result("z_loss/large", "not implemented")), "1 of 2 cases passed", "#9a6700"),
        ((result(), result("z_loss/large", "unchecked")), "1 of 2 cases passed", "#1a7f37"),
    ],
)
def test_the_badge(results, value, colour):
    text = badge([of(*results)])
    picture = ElementTree.fromstring(text)
    assert picture.find("{*}title").text == f"moespec conformance: {value}"
    assert [label.text for label in picture.iter("{http://www.w3.org/2000/svg}text")] == ["moespec conformance", value]
    assert colour in text
