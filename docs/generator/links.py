"""Every link within the site leads somewhere: to a file that is there, and to an anchor that it has."""

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Links(HTMLParser):
    """The addresses that a page names, and the anchors that it has."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.anchors: set[str] = {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("id", "name"):
                self.anchors.add(value or "")
            elif name in ("href", "src"):
                self.addresses.append(value or "")


def broken(folder: Path) -> Iterator[str]:
    """A sentence for each link of the pages in `folder` that leads nowhere. Links out of the site are not followed."""
    pages = {path.resolve(): Links(path) for path in sorted(folder.rglob("*.html"))}
    for path, links in pages.items():
        for address in links.addresses:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                yield f"{path.name}: {address} leads to no file"
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{path.name}: {address} leads to no anchor"
