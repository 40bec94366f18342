"""Every page that nsqadmin can render for a cluster, found by following its links and forms. One of each kind is enough."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Final
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit

Fetch = Callable[[str], str]  # a path -> the HTML there; "" if there is something else

_VOID: Final = frozenset(
    ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "option", "source", "wbr")
)
# Arguments that choose another page or dialog, not only other rows of the same one.
_CHOOSES: Final = ("tab", "group", "do", "severity")
_NO_PAGES: Final = re.compile(r"/(static|metrics|api|events)\b")


@dataclass
class Page:
    """What matters here of a page's HTML."""

    path: str
    text: str
    ids: list[str] = field(default_factory=list)
    sheet: list[str] = field(default_factory=list)  # the ids of what a dialog would show
    references: list[str] = field(default_factory=list)  # ids that attributes name
    links: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)  # links that open a dialog
    forms: list[str] = field(default_factory=list)  # addresses of GET forms, with their hidden fields
    tabs: list[str] = field(default_factory=list)  # their names

    @property
    def is_dialog(self) -> bool:
        return "sheet" in self.ids


class _Reader(HTMLParser):
    def __init__(self, page: Page) -> None:
        super().__init__()
        self._page = page
        self._depth = 0
        self._sheet = 0  # the depth of the sheet; 0 outside of it
        self._form: list[tuple[str, str]] | None = None
        self._action = ""
        self._is_in_tabs = self._is_in_count = False
        self.feed(page.text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        page, known = self._page, {name: value or "" for name, value in attributes}
        self._depth += tag not in _VOID
        if "id" in known:
            page.ids.append(known["id"])
            if known["id"] == "sheet":
                self._sheet = self._depth
            if self._sheet:
                page.sheet.append(known["id"])
        for name in ("for", "aria-labelledby", "aria-describedby", "aria-controls", "list", "form"):
            page.references += known.get(name, "").split()
        if tag == "nav":
            self._is_in_tabs = known.get("class") == "tabs"
        self._is_in_count = self._is_in_tabs and tag == "span"
        if tag == "a" and "href" in known:
            (page.dialogs if "data-dialog" in known else page.links).append(urljoin(page.path, known["href"]))
            if self._is_in_tabs:
                page.tabs.append("")
        if tag == "form":
            self._form = [] if known.get("method") == "get" else None
            self._action = urljoin(page.path, known.get("action", ""))
        if tag == "input" and self._form is not None and known.get("type") == "hidden":
            self._form.append((known["name"], known.get("value", "")))

    def handle_endtag(self, tag: str) -> None:
        if tag == "form" and self._form is not None:
            self._page.forms.append(f"{self._action.partition('?')[0]}?{urlencode(self._form)}")
            self._form = None
        if tag == "nav":
            self._is_in_tabs = False
        if tag == "span":
            self._is_in_count = False
        if self._sheet == self._depth:
            self._sheet = 0
        self._depth -= tag not in _VOID

    def handle_data(self, data: str) -> None:
        if self._is_in_tabs and not self._is_in_count and self._page.tabs and data.strip():
            self._page.tabs[-1] += data.strip()


def read_page(path: str, text: str) -> Page:
    page = Page(path, text)
    _Reader(page)
    return page


def kind_of(path: str) -> str:
    """Return what a path has in common with those of the same kind: `/topics/TOPIC/CHANNEL?tab=buried`."""
    parts = urlsplit(path)
    steps = parts.path.split("/")
    if steps[1:2] == ["topics"]:
        steps[2:4] = ["TOPIC", "CHANNEL"][: len(steps[2:4])]
    elif steps[1:2] in (["nodes"], ["incidents"]) and len(steps) > 2 and steps[2] not in ("drain", "forget"):
        steps[2] = "ONE"
    arguments = dict(parse_qsl(parts.query))
    chosen = [f"{name}={arguments[name]}" for name in _CHOOSES if arguments.get(name)]
    if steps[1] == "actions":
        chosen += [name for name in ("topic", "channel", "node", "reason", "on") if arguments.get(name)]
    return "/".join(steps) + ("?" + "&".join(chosen) if chosen else "")


def crawl(fetch: Fetch, starts: Iterable[str] = ("/",), *, each: int = 2) -> Iterator[Page]:
    """Yield pages of every kind, at most `each` of one, as long as there are links to new ones."""
    seen: dict[str, int] = {}
    waiting = list(starts)
    known = set(waiting)
    while waiting:
        path = waiting.pop(0)
        kind = kind_of(path)
        if seen.get(kind, 0) >= each:
            continue
        text = fetch(path)
        if not text:
            continue
        seen[kind] = seen.get(kind, 0) + 1
        page = read_page(path, text)
        yield page
        for link in (*page.dialogs, *page.links, *page.forms):
            target = link.partition("#")[0]
            if target.startswith("/") and target not in known and not _NO_PAGES.match(target):
                known.add(target)
                waiting.append(target)
