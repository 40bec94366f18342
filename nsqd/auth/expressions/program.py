"""Compiles the nodes of an expression into instructions, and runs them.

A search follows all paths in parallel, one character at a time (Thompson's algorithm), so it takes linear time.
"""

from __future__ import annotations

from typing import Final

from nsqd.auth.expressions.character_sets import WORD
from nsqd.auth.expressions.error import ExpressionError
from nsqd.auth.expressions.nodes import Alternatives, Assertion, Characters, Node, Repeat, Sequence

_MOST_STEPS: Final = 5000  # instructions, after `{2,3}` and the like are expanded


class Program:
    """Numbered instructions. If `conditions[n]` holds, instruction n continues with the instructions in `then[n]`."""

    def __init__(self, node: Node) -> None:
        self.conditions: list[int | str | None] = []  # a set of characters, a kind of position, or none
        self.then: list[tuple[int, ...]] = []
        if _size(node) > _MOST_STEPS:
            raise ExpressionError("too large")
        self.first = self._add(node, self._put(None, ()))

    def _put(self, condition: int | str | None, then: tuple[int, ...]) -> int:
        self.conditions.append(condition)
        self.then.append(then)
        return len(self.conditions) - 1

    def _add(self, node: Node, then: int) -> int:
        """Add the instructions for `node`, which continue at `then`. Returns the number of the first one."""
        match node:
            case Characters(characters):
                return self._put(characters, (then,))
            case Assertion(kind):
                return self._put(kind, (then,))
            case Sequence(parts):
                for part in reversed(parts):
                    then = self._add(part, then)
                return then
            case Alternatives(parts):
                return self._put(None, tuple(self._add(part, then) for part in parts))
            case Repeat(part, least, most):
                if most is None:
                    loop = self._put(None, ())
                    self.then[loop] = (self._add(part, loop), then)
                    then = loop
                else:
                    end = then
                    for _ in range(most - least):
                        then = self._put(None, (self._add(part, then), end))
                for _ in range(least):
                    then = self._add(part, then)
                return then

    def found_in(self, name: str) -> bool:
        conditions, then, first = self.conditions, self.then, self.first
        reached: set[int] = set()
        for at in range(len(name) + 1):
            seen: set[int] = set()
            pending = [first, *reached]  # `first` again, because a match may begin at any character
            reached = set()
            bit = 1 << ord(name[at]) if at < len(name) else 0
            while pending:
                step = pending.pop()
                if step in seen:
                    continue
                seen.add(step)
                condition = conditions[step]
                if condition is None:
                    if not then[step]:
                        return True
                    pending += then[step]
                elif isinstance(condition, str):
                    if _is_at(condition, name, at):
                        pending += then[step]
                elif condition & bit:
                    reached.update(then[step])
        return False


def _size(node: Node) -> int:
    match node:
        case Characters() | Assertion():
            return 1
        case Sequence(parts) | Alternatives(parts):
            return 1 + sum(map(_size, parts))
        case Repeat(part, least, most):
            return 1 + (1 + _size(part)) * max(1, least, most or least + 1)


def _is_at(kind: str, name: str, at: int) -> bool:
    match kind:
        case "start":
            return at == 0
        case "end":
            return at == len(name)
        case "line start":
            return at == 0 or name[at - 1] == "\n"
        case "line end":
            return at == len(name) or name[at] == "\n"
    border = _is_word(name[at - 1 : at]) != _is_word(name[at : at + 1])
    return border == (kind == "border")


def _is_word(character: str) -> bool:
    return bool(character) and bool(WORD >> ord(character) & 1)
