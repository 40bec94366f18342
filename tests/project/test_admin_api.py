"""The page of nsqadmin's HTTP API names every route, and no other."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "nsqadmin-api.md"
SOURCES = sorted((PAGE.parents[2] / "nsqadmin").rglob("*.py"))
ROUTE = re.compile(r'Route\(\s*"(GET|POST|PUT|DELETE)",\s*(?:"([^"]+)"|(\w+))')


def routes() -> set[tuple[str, str]]:
    """Return the routes of the APIs, without those of pages, which are for people."""
    found: set[tuple[str, str]] = set()
    for source in SOURCES:
        if "pages" in source.parts or source.name == "site.py":
            continue
        text = source.read_text(encoding="utf-8")
        names = dict(re.findall(r"(\w+) = \"(/api/[^\"]+)\"", text))
        pairs = re.findall(r"(\w+), (\w+), (\w+) = (\"/api/.*)", text)
        for *words, values in pairs:
            names |= dict(zip(words, re.findall(r'"([^"]+)"', values), strict=False))
        found |= {(method, path or names[name]) for method, path, name in ROUTE.findall(text)}
    return found


def test_every_endpoint_is_described() -> None:
    described = set(re.findall(r"^\| `(GET|POST|PUT|DELETE) ([^` ]+)`", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert routes() == described
