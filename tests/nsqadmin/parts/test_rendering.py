"""Files with macros import what these use: a template that imports them needn't have imported it before."""

from __future__ import annotations

from pathlib import Path

import pytest
from jinja2 import meta

import nsqadmin
from nsqadmin.parts.links import Links
from nsqadmin.parts.rendering import Static, environment
from tests.support.process import needs_module

needs_module("starlette")

FOLDER = Path(nsqadmin.__file__).parent / "web" / "templates"
WITH_MACROS = sorted(it for it in FOLDER.glob("parts/*.html") if "{% macro" in it.read_text())
IMPORTED = {"ui", "messages", "jobs", "picking", "tab_of", "cards", "tables"}


@pytest.mark.parametrize("file", WITH_MACROS, ids=lambda file: file.stem)
def test_macros_have_all_that_they_use(file: Path) -> None:
    known = environment(Links(""), Static())
    assert meta.find_undeclared_variables(known.parse(file.read_text())) & IMPORTED == set()


def test_a_node_that_was_not_searched_is_named_on_the_pages_of_jobs() -> None:
    """Recorded: the page of a task was an internal error while a node was silent."""
    page = environment(Links(""), Static()).from_string(
        "{% import 'parts/selection_tab.html' as tab_of with context %}{{ tab_of.not_read('n1:4151', 'it is silent') }}"
    )
    assert "was not fully searched: it is silent" in page.render()
