"""Masks bodies and burial reasons for users without the right `payload`.

A rule is a path into JSON (`$.customer.email`, `$.items.*.card`), or a regular expression whose matches are replaced
anywhere. Without rules, these users see no bodies at all; if all rules are paths, they only see JSON bodies.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

MASK: Final = "***"
_ANY: Final = "*"


class BadMask(ValueError):
    """The rule is invalid; the message says why."""


@dataclass(frozen=True, slots=True)
class Masking:
    """The rules of --mask."""

    paths: tuple[tuple[str, ...], ...] = ()
    expressions: tuple[re.Pattern[str], ...] = ()

    def masked(self, body: bytes) -> bytes | None:
        """Return the body with all hidden parts replaced, or None if none of it may be seen."""
        if not self.paths and not self.expressions:
            return None
        try:
            text = body.decode("utf-8")
        except UnicodeDecodeError:
            return None
        if self.paths:
            repeats: list[None] = []
            try:
                document = json.loads(text, object_pairs_hook=partial(_members, repeats))
            except (ValueError, RecursionError):
                if not self.expressions:
                    return None
            else:
                changed = [_hide(document, path) for path in self.paths]
                # A document without a hidden field keeps its own formatting, which is worth seeing. But if it has a name
                # twice, its text shows more than we have looked at.
                text = json.dumps(document, ensure_ascii=False) if any(changed) or repeats else text
        for expression in self.expressions:
            text = expression.sub(MASK, text)
        return text.encode("utf-8", "backslashreplace")  # a lone surrogate stays an escape

    def masked_text(self, text: str) -> str | None:
        """Return a text that isn't a body, with matches of expressions replaced; None without an expression.

        Paths don't apply to such a text.
        """
        if not self.expressions:
            return None
        masked = self.masked(text.encode("utf-8", "surrogatepass"))
        return None if masked is None else masked.decode()


def parse_masks(rules: Iterable[str]) -> Masking:
    """Parse the rules of --mask. Raise BadMask."""
    paths: list[tuple[str, ...]] = []
    expressions: list[re.Pattern[str]] = []
    for rule in rules:
        if rule.startswith("$."):
            path = tuple(rule[2:].split("."))
            if not all(path):
                raise BadMask(f"{rule}: expected $.name.name")
            paths.append(path)
            continue
        try:
            expressions.append(re.compile(rule))
        except re.error as error:
            raise BadMask(f"{rule}: {error}") from error
    return Masking(tuple(paths), tuple(expressions))


def _members(repeats: list[None], pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the members of a JSON object. Add to `repeats` if a name is there twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        repeats.append(None)
    return found


def _hide(document: Any, path: tuple[str, ...]) -> bool:
    """Replace the value at the path. Return True if there was one."""
    step, rest = path[0], path[1:]
    members: Iterable[Any]
    if isinstance(document, dict):
        members = list(document) if step == _ANY else [step] if step in document else []
    elif isinstance(document, list):
        members = range(len(document)) if step == _ANY else _index(document, step)
    else:
        return False
    found = False
    for member in members:
        if rest:
            found |= _hide(document[member], rest)
        else:
            document[member], found = MASK, True
    return found


def _index(document: list[Any], step: str) -> list[int]:
    return [int(step)] if step.isascii() and step.isdigit() and int(step) < len(document) else []
