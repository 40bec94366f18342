"""docs/reference/http.md has every endpoint of nsqd and nsqlookupd, and no other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = (ROOT / "docs" / "reference" / "http.md").read_text(encoding="utf-8")
SOURCES: Final = {
    "nsqd": [*sorted((ROOT / "nsqd" / "http").glob("*.py"))],
    "nsqlookupd": [ROOT / "nsqlookupd" / "http_api.py"],
}


@pytest.mark.parametrize("program", SOURCES)
def test_endpoints_are_on_the_page(program: str) -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in SOURCES[program])
    served = set(re.findall(r'(?:Route|Endpoint)\(\s*"(\w+)",\s*"([^"]+)"', code))
    (section,) = re.findall(rf"^## {program}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert set(re.findall(r"^\| `(\w+) (/[^`]*)` \|", section, re.MULTILINE)) == served


@pytest.mark.parametrize("program", SOURCES)
def test_named_errors_exist(program: str) -> None:
    folders = ("common", program)
    code = "".join(path.read_text(encoding="utf-8") for it in folders for path in (ROOT / it).rglob("*.py"))
    (section,) = re.findall(rf"^## {program}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    named = set(re.findall(r"`([A-Z]+_[A-Z_]+)`", section))
    assert named
    assert {name for name in named if not any(f'"{text}"' in code for text in _in_code(name))} == set()


def _in_code(error: str) -> list[str]:
    """Return what stands in the code for an error: one of them does."""
    argument = error.removeprefix("INVALID_ARG_").lower()  # most are made of the argument's name
    return [error, f"E_{error}", argument]  # what TCP calls E_BAD_BODY is BAD_BODY over HTTP
