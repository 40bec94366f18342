"""TOML files that are a list of entries, such as `[[policy]]` of a policy file, and the mistakes in them, by line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Mistake:
    line: int  # of the entry's header; 0 if the text has the line, or the mistake concerns the whole file
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}" if self.line else self.text

    def in_file(self, path: str) -> str:
        """Return the mistake with its place, as compilers write it."""
        return f"{path}{f':{self.line}' if self.line else ''}: {self.text}"


class BadEntries(ValueError):
    """The text is not a valid file of entries. `mistakes` lists all of them, by line."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        self.mistakes = tuple(sorted(mistakes, key=lambda mistake: mistake.line))
        super().__init__("; ".join(map(str, self.mistakes)))


def entries_in(text: str, word: str) -> list[tuple[int, Any]]:
    """Return the line and the table of each `[[word]]`. Raise BadEntries."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: syntax, or a number too long; RecursionError: nesting
        raise BadEntries([Mistake(0, str(error))]) from error
    tables = document.pop(word, [])
    if document:
        raise BadEntries([Mistake(0, f"expected only [[{word}]] tables, not {next(iter(document))}")])
    is_header = re.compile(rf"\s*\[\[\s*{re.escape(word)}\s*\]\]\s*(#.*)?").fullmatch
    lines = [number for number, line in enumerate(text.split("\n"), 1) if is_header(line)]
    # tomllib gives no line numbers, so we search for the headers. The counts differ if the entries are in an inline
    # list, or a multi-line string contains a header.
    if not isinstance(tables, list) or len(lines) != len(tables):
        raise BadEntries([Mistake(0, f"each entry must begin with [[{word}]] in a line of its own")])
    return list(zip(lines, tables, strict=True))
