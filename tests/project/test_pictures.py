"""The pictures of the documents: small, used, described, and made by a script that says how."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from scripts.pictures import HEALTHY, LARGEST, SILENT
from tests.project.test_docs import DOCUMENTS

ROOT = Path(__file__).resolve().parents[2]
PICTURES = sorted((ROOT / "docs" / "pictures").iterdir())
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
    assert picture.read_bytes().startswith(b"\x89PNG\r\n")
    assert picture.stat().st_size <= LARGEST
    assert len(shown().get(picture, "").split()) > 5


def test_documents_show_only_pictures_that_the_script_makes() -> None:
    made = {f"{it.name}{end}.png" for it in (*HEALTHY, *SILENT) for end in (("", "-dark") if it.dark else ("",))}
    assert {it.name for it in PICTURES} == made
    assert set(shown()) == set(PICTURES)


def test_the_script_says_what_it_does() -> None:
    done = subprocess.run([ROOT / "scripts" / "make-pictures", "--help"], capture_output=True, text=True, check=True)
    assert "docs/pictures" in done.stdout
