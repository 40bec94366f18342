"""A page is one module and one template, both with its name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ADMIN = Path(__file__).resolve().parents[3] / "nsqadmin"
TEMPLATES = ADMIN / "web" / "templates"
PAGES = sorted(it.stem for it in (ADMIN / "pages").glob("*.py") if it.stem != "__init__")


def test_each_template_has_its_module_and_each_module_its_template() -> None:
    assert sorted(it.stem for it in TEMPLATES.glob("*.html")) == PAGES


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_rendered_by_its_own_template_alone(page: str) -> None:
    source = (ADMIN / "pages" / f"{page}.py").read_text()
    assert {*re.findall(r'"([\w/]+)\.html"', source)} == {page}


def test_only_pages_fill_the_frame_of_a_page() -> None:
    framed = [it for it in TEMPLATES.rglob("*.html") if it.read_text().startswith("{% extends")]
    assert {it.parent for it in framed} == {TEMPLATES}
    # The login is for people without rights, and the frame shows them too much.
    assert sorted(it.stem for it in framed) == [it for it in PAGES if it != "login"]
