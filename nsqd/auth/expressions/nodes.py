"""The syntax tree of an expression."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Characters:
    """One character from a set."""

    set: int


@dataclass(frozen=True, slots=True)
class Assertion:
    """A condition on a position between two characters, such as `^` or `\\b`."""

    kind: str


@dataclass(frozen=True, slots=True)
class Sequence:
    parts: list[Node]


@dataclass(frozen=True, slots=True)
class Alternatives:
    parts: list[Node]


@dataclass(frozen=True, slots=True)
class Repeat:
    part: Node
    least: int
    most: int | None  # None: any number


Node = Characters | Assertion | Sequence | Alternatives | Repeat
