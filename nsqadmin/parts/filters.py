"""The filter of the topics page: words, and conditions on numbers and states.

    orders fraud            both words are in "topic/channel"
    depth>1000  in>=50      numbers: depth, in, inflight, deferred, buried, consumers, nodes, drain, lag, requeues,
                            timeouts
    silent>0                nodes that don't answer
    state:paused            states: paused, problem, warning, ok, inactive, internal
    ephemeral:no            yes or no
    -test                   not this word; also for conditions: -state:ok

A row matches if all conditions hold. A condition on an unknown number doesn't hold.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol


class FilterRow(Protocol):
    """The properties of a row that a filter can name."""

    @property
    def path(self) -> str: ...

    @property
    def is_ephemeral(self) -> bool: ...

    @property
    def states(self) -> frozenset[str]: ...

    def number(self, name: str) -> float | None: ...


NUMBERS: Final = frozenset(
    (
        "depth",
        "in",
        "inflight",
        "deferred",
        "buried",
        "consumers",
        "nodes",
        "silent",
        "drain",
        "lag",
        "requeues",
        "timeouts",
    )
)
STATES: Final = frozenset(("paused", "problem", "warning", "ok", "inactive", "internal"))

_COMPARISONS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
}
_UNITS: Final = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_condition: Final = re.compile(r"([a-z]+)(>=|<=|!=|>|<|=)(\d+(?:\.\d+)?)([kmg]?)", re.ASCII).fullmatch
_Test = Callable[[FilterRow], bool]


class BadTopicFilter(ValueError):
    """A condition is invalid; the message says which, and shows valid ones."""


@dataclass(frozen=True, slots=True)
class TopicFilter:
    text: str = ""
    tests: tuple[_Test, ...] = ()

    def matches(self, row: FilterRow) -> bool:
        return all(test(row) for test in self.tests)

    @property
    def is_empty(self) -> bool:
        return not self.tests


def parse(text: str) -> TopicFilter:
    """Parse a filter as typed by a user. Raise BadTopicFilter."""
    return TopicFilter(text.strip(), tuple(_term(term) for term in text.lower().split()))


def _term(term: str) -> _Test:
    if term.startswith("-") and len(term) > 1:
        test = _term(term[1:])
        return lambda row: not test(row)
    if (found := _condition(term)) is not None:
        return _number_test(found[1], found[2], float(found[3]) * _UNITS[found[4]])
    name, colon, value = term.partition(":")
    if colon and name == "state":
        return _state_test(value)
    if colon and name == "ephemeral":
        return _ephemeral_test(value)
    if re.search(r"[<>=:]", term):
        raise BadTopicFilter(f"“{term}” isn't a condition. Try depth>1000, consumers=0, state:paused or ephemeral:no.")
    return lambda row: term in row.path.lower()


def _number_test(name: str, comparison: str, limit: float) -> _Test:
    if name not in NUMBERS:
        raise BadTopicFilter(f"There is no number “{name}”. The numbers are {', '.join(sorted(NUMBERS))}.")
    compare = _COMPARISONS[comparison]

    def test(row: FilterRow) -> bool:
        value = row.number(name)
        return value is not None and compare(value, limit)

    return test


def _state_test(state: str) -> _Test:
    if state not in STATES:
        raise BadTopicFilter(f"There is no state “{state}”. The states are {', '.join(sorted(STATES))}.")
    return lambda row: state in row.states


def _ephemeral_test(value: str) -> _Test:
    if value not in ("yes", "no"):
        raise BadTopicFilter(f"ephemeral: is yes or no, not “{value}”.")
    return lambda row: row.is_ephemeral is (value == "yes")
