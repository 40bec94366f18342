"""The pictures of the documents: small, used, described, and made by a script that says how."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from scripts.drawing import FOLDER, files
from scripts.pictures import LARGEST, RUNNING, SILENT
from tests.project.test_docs import DOCUMENTS

ROOT = Path(__file__).resolve().parents[2]
BEGINNINGS = {".png": b"\x89PNG\r\n", ".svg": b"<svg "}
OF_MEASUREMENTS = {"noisy.svg", "peers.svg"}  # bench draws them from results
PICTURES = sorted(it for it in FOLDER.iterdir() if it.suffix in BEGINNINGS)
MARKDOWN = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
HTML = re.compile(r"<picture>(.*?)</picture>", re.DOTALL)


def shown() -> dict[Path, str]:
    """Return the pictures that documents show, with their texts for those who cannot see them."""
    found: dict[Path, str] = {}
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        pairs = [(target, alt) for alt, target in MARKDOWN.findall(text)]
        for element in HTML.findall(text):
            alt = "".join(re.findall(r'alt="([^"]*)"', element))
            pairs += [(target, alt) for target in re.findall(r'src(?:set)?="([^"]+)"', element)]
        found |= {(document.parent / target).resolve(): alt for target, alt in pairs if "://" not in target}
    return found


@pytest.mark.parametrize("picture", PICTURES, ids=lambda it: it.name)
def test_a_picture_is_small_and_a_document_shows_and_describes_it(picture: Path) -> None:
    assert picture.read_bytes().startswith(BEGINNINGS[picture.suffix])
    assert picture.stat().st_size <= LARGEST
    assert len(shown().get(picture, "").split()) > 5


def test_documents_show_only_pictures_that_a_script_makes() -> None:
    taken = {f"{it.name}{end}.png" for it in (*RUNNING, *SILENT) for end in (("", "-dark") if it.dark else ("",))}
    drawn = {name for name, _ in files()}
    assert {it.name for it in PICTURES} - OF_MEASUREMENTS == taken | drawn
    assert set(shown()) == set(PICTURES)


def test_drawings_are_what_their_script_makes_of_their_sources() -> None:
    for name, contents in files():
        assert (FOLDER / name).read_text(encoding="utf-8") == contents, f"{name}: run scripts/make-drawings"


@pytest.mark.parametrize("picture", [it for it in PICTURES if it.suffix == ".svg"], ids=lambda it: it.name)
def test_a_drawing_needs_neither_scripts_nor_other_files(picture: Path) -> None:
    """Otherwise a page could not show it as an image."""
    root = ElementTree.fromstring(picture.read_text(encoding="utf-8"))
    assert {it.tag.rpartition("}")[2] for it in root.iter()}.isdisjoint({"script", "image", "foreignObject", "use"})
    assert not re.search(r"(?:href|src)=|url\((?!#)|@import|\bon\w+=", picture.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["make-pictures", "make-recording"])
def test_the_script_says_what_it_does(name: str) -> None:
    done = subprocess.run([ROOT / "scripts" / name, "--help"], capture_output=True, text=True, check=True)
    assert "docs/pictures" in done.stdout
