"""Write the pages as Markdown: fill the templates, run the examples, and write the files."""

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from generator import examples, pictures
from generator.catalogue import ROOT, Page, SiteError, home, pages
from generator.citations import citations, software, version
from generator.docstrings import introduction, markdown
from generator.evidence import measured, rows
from generator.practice import beyond, concerned, known_of, variants_of, with_issues
from generator.reference import ROOMS, sections
from generator.revisions import changes, past
from generator.sources import options, signature, sources
from moespec.conformance.check.results import COLUMNS, Report
from moespec.conformance.suite import manifests
from moespec.spec import LEDGER
from moespec.spec.implementations import models_page
from moespec.spec.implementations.models import Model, models, transformers_version
from moespec.spec.implementations.places import link_papers
from moespec.spec.implementations.positions import implementations
from moespec.spec.implementations.positions import measured as packages
from moespec.spec.implementations.table import answered_by, groups

DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
REPLACED = ("implementations.md", "models.md")
"""Pages of `docs` that templates replace on the site: the ledger, and the index of models with a page for each family."""
TEMPLATES = Environment(
    loader=FileSystemLoader(DOCS / "templates"), undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
)
TEMPLATES.filters["cell"] = lambda text: " ".join(str(text).replace("|", "\\|").split())  # of a Markdown table
TEMPLATES.filters["with_issues"] = with_issues
TEMPLATES.globals["page_of"] = models_page
TEMPLATES.globals["transformers"] = transformers_version()
TEMPLATES.filters["local"] = lambda text: _local(text)
TEMPLATES.globals["answered_by"] = lambda entry, reading: answered_by(entry, reading, packages())


def write(folder: Path, found: Sequence[Report]) -> None:
    """Write all pages into `folder`, replacing its content."""

    with_examples: dict[str, str] = {}

    def put(name: str, template: str, **given: Any) -> None:
        text = TEMPLATES.get_template(f"{template}.md.jinja").render(given)
        if name == template:
            with_examples[f"{name}.md"] = text
        (folder / f"{name}.md").write_text(link_papers(text), encoding="utf-8")

    shutil.rmtree(folder, ignore_errors=True)
    (folder / "_pictures").mkdir(parents=True)
    everything, told = pages(), changes()
    earlier = {(page.name, each.revision): each for page in everything for each in past(page)}
    for page in everything:
        examples.hold(page)
        own = [revision for name, revision in earlier if name == page.name]
        put(page.name, "algorithm", **context(page, found, own))
        if page.router:
            pictures.draw_routing(examples.routed(page).routing, folder / "_pictures" / f"{page.name}.svg")
            pictures.draw_image(page.name, folder / "_pictures" / f"{page.name}-image.svg")
    for (name, revision), each in earlier.items():
        change = next(change for change in told if (change.name, change.revision) == (name, revision + 1))
        page = next(page for page in everything if page.name == name)
        put(f"{name}-{revision}", "revision", page=page, past=each, change=change)
    shared = {
        "routers": [page for page in everything if page.router],
        "blocks": [page for page in everything if not page.router],
        "entries": LEDGER.values(),
        "home": home(),
        "groups": groups(),
        "concerned": concerned(),
        "known_of": known_of(),
        "implementations": implementations(),
        "beyond": beyond(),
        "changes": told,
        "earlier": earlier,
        "software": software(),
        "rooms": ROOMS,
        "version": version(),
        "families": families(),
    }
    for name in ("index", "routers", "blocks", "ledger", "revisions", "models"):
        put(name, name, **shared)
    for name, rows_of in families().items():
        put(name, "family", models=rows_of)
    for name, room in ROOMS.items():
        put(name, "reference", room=room, sections=sections(room))
    shutil.copytree(DOCS / "notebooks", folder / "notebooks")  # Sphinx runs them
    for path in sorted(set(DOCS.glob("*.md")) - {DOCS / name for name in REPLACED}):
        text = path.read_text(encoding="utf-8")
        with_examples[path.name] = text
        (folder / path.name).write_text(_local(link_papers(text)), encoding="utf-8")
    run_examples(with_examples)


def families() -> dict[str, list[Model]]:
    """The published models by the name of their family's page, such as "models-kimi"."""
    named = models_page.by_family(models().values())
    return {f"models-{family.lower().replace(' ', '-')}": rows for family, rows in named.items()}


def context(page: Page, found: Sequence[Report] = (), earlier: Sequence[int] = ()) -> dict[str, Any]:
    """The variables of a page's template. earlier: the revisions that have a separate page."""
    routed = examples.routed(page) if page.router else None
    calls = [step.call for step in routed.steps] if routed else []
    owners = {name: other.name for other in pages() for name in other.functions}
    steps_of = dict.fromkeys(owners[call] for call in calls if call in owners and owners[call] != page.name)
    with_entries = [other.name for other in pages() if other.entries]
    return {
        "page": page,
        "earlier": earlier,
        "facts": _facts(page),
        "introduction": "\n\n".join(introduction(module.__doc__ or "") for module in page.modules),
        "formula": (DOCS / "formulas" / f"{page.name}.md").read_text(encoding="utf-8"),
        "parameters": markdown(inspect.getdoc(page.router.init) or "") if page.router else "",
        "route": markdown(inspect.getdoc(page.router.route) or "") if page.router else "",
        "functions": {
            name: {"signature": signature(name), "body": markdown(inspect.getdoc(function) or "")}
            for name, function in page.functions.items()
        },
        "routed": routed,
        "options": options(page),
        "steps": examples.steps_of_examples(page),
        "sources": sources(page, calls),
        "related": [name for name in steps_of if name in with_entries],
        "measured": measured(page.name),
        "vectors": [json.loads(path.read_text(encoding="utf-8")) for path in manifests().get(page.name, ())],
        "variants": variants_of(page),
        "columns": list(COLUMNS),
        "rows": rows(found, page.name),
        "software": software(page),
        "citations": citations(page),
    }


def _facts(page: Page) -> str:
    """A table with the papers that define the algorithm and, for a router, the models, what the router balances and drops, and its cost."""
    facts = {"Defined by": page.algorithm.cites}
    if page.router:
        facts |= {"Models": ", ".join(page.router.models)} if page.router.models else {}
        facts |= {"Balances": page.router.balances, "Drops": page.router.drops, "Costs": page.router.cost}
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in facts.items())])


def run_examples(texts: Mapping[str, str]) -> None:
    """Run the Python blocks of pages, each in a separate process, one for each core at a time. Raises SiteError if one fails.

    texts: the text of each page by its file name.
    """
    blocks = [(name, block) for name, text in texts.items() for block in BLOCK.findall(text)]

    def run(block: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, check=False)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for (name, _), result in zip(blocks, pool.map(run, (block for _, block in blocks)), strict=True):
            if result.returncode:
                raise SiteError(f"{name}: {result.stderr}")


def _local(text: str) -> str:
    """A page of docs/ as a site page: links to repository files become plain file names, and links named after a page's
    file get the page's title."""
    text = re.sub(r"\[[^\]]*\]\(implementations\.md\)", "[the ledger](ledger.md)", text)
    text = re.sub(r"\[([\w-]+\.md)\]\(\1\)", _titled, text)
    return re.sub(r"\[([^\]]*)\]\(\.\./[^)]*\)", r"`\1`", text)


def _titled(link: re.Match[str]) -> str:
    title = (DOCS / link[1]).read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
    return f"[{title}]({link[1]})"
