"""The documents are true: generated pages are up to date, and links, commands and names of tests exist."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.reference import pages

ROOT = Path(__file__).resolve().parents[2]
CLIENT = ROOT / "nsqclient" / "README.md"  # an index shows it, so its links have to be whole addresses
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", CLIENT, *sorted((ROOT / "docs").rglob("*.md"))]
# Tests that were deleted, shortened or left CI, and the tests that have their rules now: docs/decisions/0028.
RULES_MOVED = ROOT / "bench" / "results" / "suite" / "rules-moved.tsv"
# In Markdown, or in HTML, which pictures that are links need.
LINK = re.compile(r"""(?:\]\(|href=")([^)"\s#]+)(?:#[^)"]*)?[)"]""")
LINK_TO_HEADING = re.compile(r"""(?:\]\(|href=")((?:[\w./-]+\.md)?)#([^)"\s]+)[)"]""")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def local_links(document: Path) -> Iterator[Path]:
    for target in LINK.findall(document.read_text(encoding="utf-8")):
        if "://" not in target and not target.startswith("mailto:"):
            yield (document.parent / target).resolve()


def test_generated_pages_are_up_to_date() -> None:
    """All in one test, because they are generated together: that takes a second."""
    outdated = [str(path) for path, text in pages().items() if (ROOT / path).read_text(encoding="utf-8") != text]
    assert outdated == [], "run scripts/make-reference"


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(document: Path) -> None:
    missing = [str(target) for target in local_links(document) if not target.exists()]
    assert not missing


def test_the_client_s_page_links_to_nothing_that_an_index_lacks() -> None:
    assert not [*local_links(CLIENT)]


def headings(document: Path) -> set[str]:
    """Return the headings as GitHub names them in links."""
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    words = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", it.lower()).replace(" ", "-") for it in words}


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_to_headings_lead_to_one(document: Path) -> None:
    found = LINK_TO_HEADING.findall(document.read_text(encoding="utf-8"))
    missing = [
        f"{page}#{heading}"
        for page, heading in found
        if heading not in headings((document.parent / page) if page else document)
    ]
    assert not missing


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    linked = set(local_links(index))
    unlisted = [name_of(page) for page in DOCUMENTS if index.parent in page.parents and page not in {*linked, index}]
    assert not unlisted


@pytest.mark.parametrize("document", [*DOCUMENTS, RULES_MOVED], ids=name_of)
def test_named_tests_and_scripts_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    # A page may name a folder of tests that has no tests yet.
    for path in re.findall(r"`(tests/[\w./-]+\.py|(?:scripts|\.ci)/[\w./-]+)(?:::\w+)?[` ]", text):
        assert (ROOT / path).exists(), path
    for path, test in re.findall(r"`(tests/[\w./-]+)::(\w+)`", text):
        assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8"), test


def test_what_one_looks_for_is_there() -> None:
    page = (ROOT / "docs" / "explanation" / "where-to-look.md").read_text(encoding="utf-8")
    looked_for = [
        (path, name.rpartition(".")[2])
        for path, names in re.findall(r"`([\w/]+\.py)`: ((?:`[\w.]+`(?:, )?)+)", page)
        for name in re.findall(r"`([\w.]+)`", names)
    ]
    assert len({path for path, _ in looked_for}) == len(set(re.findall(r"`([\w/]+\.py)`", page)))
    missing = [
        f"{path}: {name}"
        for path, name in looked_for
        if not re.search(rf"(def |class |^|self\.){name}\b", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert not missing


@pytest.mark.parametrize("document", [ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=name_of)
def test_commands_exist_and_can_be_run(document: Path) -> None:
    shown = "\n".join(re.findall(r"```(?:sh|bash)\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL))
    commands = re.findall(r"^((?:scripts|\.ci|bench)/[\w-]+)", shown, re.MULTILINE)
    assert commands
    for command in commands:
        assert os.access(ROOT / command, os.X_OK), command


def test_console_scripts_lead_to_functions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for target in project["scripts"].values():
        module, _, function = target.partition(":")
        source = ROOT / (module.replace(".", "/") + ".py")
        assert f"def {function}(" in source.read_text(encoding="utf-8")
