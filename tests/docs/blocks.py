"""The commands in a page of the documents: its `sh` blocks, and `curl ...` in running text.

A comment before a block, which readers do not see, says how to treat it:

    <!-- test: skip: it needs a Kubernetes cluster -->
    <!-- test: help: it measures for minutes -->          each line is only asked for its --help
    <!-- test: background -->                             it goes on until it is ended; it must not fail meanwhile

`skip` and `help` need a reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from textwrap import dedent
from typing import Final

COMMANDS: Final = "sh"
# Blocks that are shown and not run. No shell is among them, as its blocks would get around the tests.
SHOWN: Final = frozenset(
    {"console", "html", "http", "ini", "json", "jsonc", "mermaid", "python", "sql", "text", "toml", "yaml"}
)

_FENCE: Final = re.compile(
    r"(?:^ *<!-- test: (?P<said>.*?) -->\n+)?^(?P<indent> *)```(?P<language>[^\n]*)\n(?P<body>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_INLINE: Final = re.compile(r"`(curl [^`\n]+)`")


class Manner(StrEnum):
    RUN = "run"
    SKIP = "skip"
    HELP = "help"
    BACKGROUND = "background"


class Unclear(Exception):
    """A mistake in a block that the author of the page should fix."""


@dataclass(frozen=True, slots=True)
class Block:
    line: int
    commands: str
    manner: Manner = Manner.RUN
    reason: str = ""


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    try:
        return sorted([*_fenced(text), *_inline(text)], key=lambda it: it.line)
    except Unclear as error:
        raise Unclear(f"{page}:{error}") from None


def shown_in(page: Path, language: str) -> list[str]:
    """Return the blocks of a language that are shown and not run."""
    return [
        dedent(it["body"]) for it in _FENCE.finditer(page.read_text(encoding="utf-8")) if it["language"] == language
    ]


def _fenced(text: str) -> Iterator[Block]:
    for found in _FENCE.finditer(text):
        line = text.count("\n", 0, found.start("body"))
        language = found["language"]
        if language == COMMANDS:
            yield _block(line, dedent(found["body"]), found["said"] or Manner.RUN)
        elif language not in SHOWN:
            raise Unclear(
                f"{line}: a block of {language or 'no language'}; commands are sh, and what is shown {', '.join(sorted(SHOWN))}"
            )


def _block(line: int, commands: str, said: str) -> Block:
    word, _, reason = said.partition(": ")
    if word not in list(Manner):
        raise Unclear(f"{line}: '{said}' is none of {', '.join(Manner)}")
    manner = Manner(word)
    if bool(reason) != (manner in (Manner.SKIP, Manner.HELP)):
        raise Unclear(f"{line}: {manner} needs {'no' if reason else 'a'} reason")
    return Block(line, commands, manner, reason)


def _inline(text: str) -> Iterator[Block]:
    without_blocks = _FENCE.sub(lambda it: "\n" * it[0].count("\n"), text)
    for found in _INLINE.finditer(without_blocks):
        yield Block(without_blocks.count("\n", 0, found.start()) + 1, found[1] + "\n")
