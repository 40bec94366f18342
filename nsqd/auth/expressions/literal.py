"""Most expressions are names, or the beginnings or ends of names. They need no program."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_LITERAL: Final = re.compile(r"(\^?)(\.\*)?((?:[A-Za-z0-9_#-]|\\\.)*+)(\.\*)?(\$?)")


@dataclass(frozen=True, slots=True)
class Literal:
    """A text to be found anywhere in the name, at its start, at its end, or as the whole name."""

    start: bool
    text: str
    end: bool

    def found_in(self, name: str) -> bool:
        if self.start and self.end:
            return name == self.text
        if self.start:
            return name.startswith(self.text)
        return name.endswith(self.text) if self.end else self.text in name


def literal_of(text: str) -> Literal | None:
    """Return what to look for if the expression is like `^name$`, `name`, `^begins.*`, `.*ends$` or `.*`, else None.

    A dot of the name itself is written `\\.` in the expression.
    """
    found = _LITERAL.fullmatch(text)
    if found is None:
        return None
    starts, anything_before, name, anything_after, ends = found.groups()
    return Literal(
        start=bool(starts and not anything_before),
        text=name.replace("\\", ""),
        end=bool(ends and not anything_after),
    )
