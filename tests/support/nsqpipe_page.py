"""What docs/reference/nsqpipe.md says about a command's options."""

from __future__ import annotations

import re
from typing import Final

from tests.support.process import ROOT

PAGE: Final = (ROOT / "docs" / "reference" / "nsqpipe.md").read_text(encoding="utf-8")
_COMMON: Final = PAGE.partition("\n## Commands\n")[2].partition("\n### ")[0]


def rows_of(command: str) -> str:
    """Return the rows of the command's own table, and of the tables that it shares with others."""
    return _COMMON + _section(command)


def flags_of(command: str) -> set[str]:
    """Return the command's flags: those in its table, and those that it has besides, by name or by group."""
    own, _, also = _section(command).partition("\nAlso ")
    groups = (_COMMON.partition(f"| {it.capitalize()} option |")[2] for it in re.findall(r"\[(\w+) options\]", also))
    found = [own, *(group.partition("\n\n")[0] for group in groups)]
    return {*re.findall(r"^\| `(--[\w-]+)[ `]", "\n".join(found), re.MULTILINE), *re.findall(r"`(--[\w-]+)`", also)}


def _section(command: str) -> str:
    return PAGE.partition(f"### nsqpipe {command}\n")[2].partition("\n### ")[0]
