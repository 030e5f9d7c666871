"""The site's generator: what a page shows is what the specification says and computes, and what is wrong fails."""

import ast
import doctest
import json
import re
import subprocess
from dataclasses import fields
from html import unescape
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from generator import citations, docstrings, examples, heads, names, practice, reference, revisions, sources, write
from generator.catalogue import ROOT, SiteError, home, pages
from sphinx.cmd.build import build_main

from moespec import spec
from moespec.backends.torch import nn
from moespec.spec import ALGORITHMS, LEDGER, ROUTERS
from moespec.spec.implementations.models import models
from moespec.training.data import dataset

PAGES = {page.name: page for page in pages()}


def text_of(name):
    return write.TEMPLATES.get_template("algorithm.md.jinja").render(write.context(PAGES[name]))


@pytest.fixture(scope="module")
def expert_choice():
    return text_of("expert_choice")


def test_every_row_of_the_specification_has_a_page_and_a_formula_and_every_entry_of_the_ledger_a_page():
    assert set(PAGES) == set(ALGORITHMS) == {path.stem for path in (ROOT / "docs" / "formulas").glob("*.md")}
    assert set(home()) == set(LEDGER)


def test_the_entries_of_a_page_have_anchors(expert_choice):
    assert re.findall(r'id="(EC-\d+)"', expert_choice) == ["EC-1", "EC-2", "EC-3", "EC-4"]
    for entry in PAGES["expert_choice"].entries:
        assert entry.question in expert_choice
        for reading in entry.readings:
            assert reading.text in expert_choice


def shown(step, name):
    """The numbers of the body of the table `name` of a step."""
    (table,) = [table for table in step.tables if f"<code>{name}</code>" in table]
    return [float(unescape(cell)) for cell in re.findall(r"<td>(.*?)</td>", table)]


def test_the_numbers_of_the_example_are_those_of_the_docstring():
    example = doctest.DocTestFinder().find(spec.expert_choice, "expert_choice")[0]
    said = [ast.literal_eval(each.want) for each in example.examples if each.want]
    first, *others = examples.steps_of_examples(PAGES["expert_choice"])
    assert first.call == "softmax_affinity"
    assert shown(first, "logits") == spec.examples.LOGITS.ravel().tolist()
    steps = [step for step in others if step.call == "expert_choice"]
    assert len(said) == len(steps) == 3
    for (slots, total), step in zip(said, steps, strict=True):
        assert shown(step, "slots") == [token for expert in slots for token in expert]
        assert sum(shown(step, "weights")) == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("name", ROUTERS)
def test_the_steps_of_a_router_end_with_its_routing(name):
    example = examples.routed(PAGES[name])
    assert example.steps[-1].call == "routing_metrics"
    assert example.routing.dispatch.shape[:2] == (6, 3)


def test_an_example_that_does_not_hold_stops(monkeypatch):
    wrong = spec.expert_choice.__doc__.replace("3.5213721945", "3.5213721946")
    monkeypatch.setattr(spec.expert_choice, "__doc__", wrong)
    for check in (examples.hold, examples.steps_of_examples):
        with pytest.raises(SiteError, match=r"3\.5213721946"):
            check(PAGES["expert_choice"])


def test_a_block_of_a_page_that_raises_stops():
    with pytest.raises(SiteError, match=r"page\.md: (?s:.*)ZeroDivisionError"):
        write.run_examples({"page.md": "```python\n1 / 0\n```\n"})


def test_sources_stand_side_by_side():
    found = sources.sources(PAGES["multi_hash"], [])
    assert list(found) == ["Specification (NumPy)", "JAX", "torch"]
    for texts in found.values():
        assert all(text.startswith("def multi_hash_mlp(") for _, text in texts)
        assert not any('"""' in text for _, text in texts)
    assert list(sources.sources(PAGES["softmax_affinity"], [])) == ["Specification (NumPy)", "JAX and torch"]
    assert sources.signature("softmax_affinity") == "def softmax_affinity(logits: ArrayLike) -> Array"


def test_the_options_of_a_router_are_listed():
    for name, router in ROUTERS.items():
        listed = {option.name: option for option in sources.options(PAGES[name])}
        assert list(listed) == [field.name for field in fields(router.Options)]
        assert all(option.meaning for option in listed.values()), name


def test_every_paper_that_a_page_names_is_among_the_references(monkeypatch):
    for page in PAGES.values():
        assert citations.citations(page) or "arXiv" not in page.algorithm.cites
    monkeypatch.setattr(citations, "references", dict)
    with pytest.raises(SiteError, match=r"expert_choice: .* 2401\.15969"):
        citations.citations(PAGES["expert_choice"])


def test_entries_are_found_by_what_they_concern_and_by_who_is_known():
    assert "gshard" in practice.concerned()["GS-1"]
    assert "expert_choice" not in practice.concerned()["GS-1"]
    known = practice.known_of()
    assert all({x.who for r in e.readings for x in r.implementations} <= set(known[e.id]) for e in LEDGER.values())
    assert "facebookresearch/fairseq" in known["GS-1"]
    assert "pytorch/pytorch" in known["EC-1"]  # measured


def test_variants_that_the_ledger_has_by_the_same_code_are_not_told_twice():
    names = {variant.name for variant in practice.beyond()}
    assert names >= {"negative_zero_last", "balance_after_drops"}
    assert not names & {"rerouted_always", "exact_gelu_by_default", "most_probable_kept"}  # of two code bases the last
    address = "https://github.com/a/b/issues/7"
    assert practice.with_issues("a/b (x; issue 7)") == f"a/b (x; [issue 7]({address}))"


def test_a_docstring_becomes_markdown():
    text = docstrings.markdown(
        "What it is.\n\n    y = x\n\nArgs:\n    x: (tokens,), a\n        number.\n\nRaises:\n    ShapeError: no.\n\n>>> 1\n1\n"
    )
    assert text == (
        "What it is.\n\n```text\ny = x\n```\n\n**Arguments**\n\n* `x`: (tokens,), a number.\n\n**Raises**\n\n"
        "* `ShapeError`: no.\n\n```pycon\n>>> 1\n1\n```\n"
    )
    assert docstrings.introduction("Title.\n\nWords.\n\nAmbiguity ledger\n\nEC-1: Why?\n") == "Words.\n"


def test_every_page_has_a_name_of_its_own_and_its_entries_in_the_index(expert_choice):
    assert names.NAMES.keys() <= PAGES.keys()
    every = [name.lower() for page in PAGES.values() for name in page.names]
    assert len(set(every)) == len(every)
    assert expert_choice.lstrip().startswith("# Expert Choice allocation (`expert_choice`)\n")
    assert "```{index} !Token Choice, !Vision MoE, !Top-k routing, !V-MoE, !Mixtral, " in text_of(
        "softmax_token_choice"
    )


def test_the_search_finds_the_families_of_models(tmp_path, monkeypatch):
    """Sphinx indexes the pages of the families as `write` writes them. Each model is on one page, with links to its readings."""
    found = write.families()
    pages = {name: write.TEMPLATES.get_template("family.md.jinja").render(models=rows) for name, rows in found.items()}
    pages["index"] = write.TEMPLATES.get_template("models.md.jinja").render(families=found)
    for name, text in pages.items():
        (tmp_path / f"{name}.md").write_text(text)
    monkeypatch.setenv("MOESPEC_VERSION", "0")
    assert build_main(["-Q", "-c", str(ROOT / "docs"), str(tmp_path), str(tmp_path / "site")]) == 0
    text = (tmp_path / "site" / "searchindex.js").read_text()
    index = json.loads(text.removeprefix("Search.setIndex(").rstrip(");"))
    for word, page in {
        "kimi": "models-kimi",
        "gpt": "models-gpt-oss",
        "oss": "models-gpt-oss",
        "glm": "models-glm",
    }.items():
        assert index["docnames"].index(page) in np.ravel(index["titleterms"][word]), word
    for row in models().values():
        (text,) = (text for text in pages.values() if f"\n## {row.title}\n" in text)
        assert all(f'<a href="ledger.html#{each[:-1]}">{each}</a>' in text for each in row.readings)


def test_each_cell_has_the_heading_of_its_column():
    rows = '<tr><td>1</td><td class="c"><span class="pre">a_b</span></td></tr><tr><td>2</td></tr>'
    head = "<thead><tr><th><p>x &lt; y</p></th><th></th></tr></thead>"
    assert heads.labelled(f"<p>a_b</p><table>{head}{rows}</table>") == (
        f'<p>a_b</p><table>{head}<tr><td data-label="x &lt; y">1</td><td data-label="" class="c"><span class="pre">'
        'a_<wbr>b</span></td></tr><tr><td data-label="x &lt; y">2</td></tr></table>'
    )
    assert heads.labelled("<table><tr><td>1</td></tr></table>") == "<table><tr><td>1</td></tr></table>"


def test_the_reference_has_signatures_fields_and_methods_as_they_are_written():
    found = {entry.name: entry for entry in reference.entries(dataset)}
    assert found["Split"].signature.startswith(
        "class Split:\n    read: Callable[[NDArray[np.int64]], NDArray[np.uint8]]\n"
    )
    assert found["Split.picture"].signature == "def picture(self, index: int) -> Image.Image"
    assert "def __init__(" in next(reference.entries(nn, ("MoE",))).signature
    assert "DEFLATE" not in found
    assert "Split.__len__" not in found
    with pytest.raises(AttributeError, match="Splits"):
        list(reference.entries(dataset, ("Splits",)))


@pytest.mark.parametrize("room", reference.ROOMS)
def test_every_name_of_the_reference_has_a_docstring(room):
    sections = reference.sections(reference.ROOMS[room])
    assert all(section.entries and section.about.strip() for section in sections)
    assert [entry.name for section in sections for entry in section.entries if not entry.body.strip()] == []


@pytest.mark.parametrize(
    ("entry", "said"),
    [("", "no entry .*`z_loss`, revision 2"), ("* `z_loss`, revision 3: x", "no revision 3 of `z_loss`")],
)
def test_a_changelog_that_does_not_fit_stops(tmp_path, monkeypatch, entry, said):
    assert revisions.changes()
    raised = {"z_loss": SimpleNamespace(revision=2 if not entry else 1)}
    monkeypatch.setattr(revisions, "ALGORITHMS", raised)
    path = tmp_path / "CHANGELOG.md"
    path.write_text(f"# Changes\n\n## 0.2\n\n{entry}\n")
    with pytest.raises(SiteError, match=said):
        revisions.changes(path)


def test_an_earlier_revision_is_what_the_history_has_of_it(tmp_path):
    def git(*arguments):
        identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    before, path = tmp_path / "spec" / "soft_moe.py", tmp_path / "spec" / "algorithms" / "soft_moe.py"
    path.parent.mkdir(parents=True)
    git("init", "-q")
    for revision, line in ((1, "old"), (1, "older"), (2, "new"), (3, "newest")):
        if revision == 3:
            before.rename(path)
        (before if revision < 3 else path).write_text(
            f'ALGORITHMS = (Algorithm("soft_routing", "A paper", {revision}, ()),)\n{line} = 1\n'
        )
        git("add", "-A")
        git("commit", "-q", "-m", line)
    modules = [SimpleNamespace(__file__="/anywhere/spec/soft_moe.py")]
    page = SimpleNamespace(name="soft_routing", algorithm=SimpleNamespace(revision=3), modules=modules)
    second, first = revisions.past(page, tmp_path)
    assert (second.revision, first.revision) == (2, 1)
    assert "older = 1" in first.texts["spec/algorithms/soft_moe.py"]
    assert {"-older = 1", "+new = 1"} <= set(first.difference.splitlines())
    assert {"-new = 1", "+newest = 1"} <= set(second.difference.splitlines())


def test_the_citation_is_valid_and_names_a_release_only_if_it_has_a_tag():
    cff = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(cff)
    tags = subprocess.run(["git", "tag"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    assert cff.get("version") in (None, *(tag.removeprefix("v") for tag in tags))
    assert ("version" in cff) == ("date-released" in cff)
    assert re.fullmatch(r"10\.\d{4,9}/\S+", cff.get("doi", "10.5281/zenodo"))
    assert re.match(r"https?://", cff.get("url", "https://"))
    assert f"  version = {{{citations.version()}}},\n" in citations.software(PAGES["gshard"])
