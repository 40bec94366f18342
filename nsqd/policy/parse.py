"""Parses a policy file:

    [[policy]]                 # from top to bottom; each key is taken from the first entry that matches and has it
    topic = "orders.*"         # * is any text; without this line: all topics
    channel = "billing"        # given: the keys below are about these channels
    max_attempts = 10
    max_rate = "500/s"

Anything unknown is refused, and anything that could not have an effect: a misspelt bound, if ignored, would be no bound.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from nsqcommon.name_patterns import is_pattern
from nsqd.broker.rules import Overflow
from nsqd.policy.keys import KEYS, About, parse_flag
from nsqd.policy.policies import ANY, Policies, PolicyEntry

_SELECTORS: Final = ("topic", "channel", "dry_run")
_is_header: Final = re.compile(r"\s*\[\[\s*policy\s*\]\]\s*(#.*)?").fullmatch


@dataclass(frozen=True, slots=True)
class Mistake:
    line: int  # of the entry's [[policy]]; 0: the text says where, or it is about the file
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}" if self.line else self.text


class PolicyError(ValueError):
    """The text is not a valid policy file; `mistakes` are all that were found."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        super().__init__("; ".join(map(str, mistakes)))
        self.mistakes = mistakes


def parse_policies(text: str) -> Policies:
    """Parse the text of a policy file. Raises PolicyError."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # besides syntax errors: a number too long, lists nested too deeply
        raise PolicyError([Mistake(0, str(error))]) from error
    tables = document.pop("policy", [])
    if document:
        raise PolicyError([Mistake(0, f"only [[policy]] tables are known here, not {next(iter(document))}")])
    lines = [number for number, line in enumerate(text.split("\n"), 1) if _is_header(line)]
    if not isinstance(tables, list) or len(lines) != len(tables):  # an inline list, or a header in a text of many lines
        raise PolicyError([Mistake(0, "each entry must begin with [[policy]] in a line of its own")])
    entries: list[PolicyEntry] = []
    mistakes: list[Mistake] = []
    for line, table in zip(lines, tables, strict=True):
        entry, wrong = _entry(line, table)
        mistakes += [Mistake(line, text) for text in wrong]
        entries.append(entry)
    mistakes += _without_effect(entries)
    if mistakes:
        raise PolicyError(sorted(mistakes, key=lambda mistake: mistake.line))
    return Policies(entries)


def _entry(line: int, table: Mapping[str, Any]) -> tuple[PolicyEntry, list[str]]:
    """Return the entry, as far as it can be understood, and what is wrong with it."""
    wrong = [
        f"{key}: {table[key]!r} is no name, nor a pattern of names"
        for key in ("topic", "channel")
        if key in table and not (isinstance(table[key], str) and is_pattern(table[key]))
    ]
    values: dict[str, Any] = {}
    is_dry = False
    for key, value in table.items():
        try:
            if key == "dry_run":
                is_dry = parse_flag(value)
            elif key in KEYS:
                values[key] = KEYS[key].parse(value)
            elif key not in _SELECTORS:
                wrong.append(f"{key}: unknown key")
        except ValueError as error:
            wrong.append(f"{key}: {error}, and not {value!r}")
    if not table.keys() - set(_SELECTORS):
        wrong.append("the entry demands nothing")
    written = {key: value for key, value in table.items() if key in KEYS}  # with those that cannot be understood
    channel = table.get("channel")
    topic = table.get("topic", ANY)
    entry = PolicyEntry(line, str(topic), None if channel is None else str(channel), written, values, is_dry)
    return entry, wrong + list(_contradictions(entry))


def _contradictions(entry: PolicyEntry) -> Iterator[str]:
    values = entry.values
    for key in values:
        if entry.channel is not None and KEYS[key].about is About.TOPICS:
            yield f"{key}: it is about topics, so it cannot stand in an entry with a channel"
        if entry.is_dry and not KEYS[key].may_be_dry:
            yield f"{key}: it cannot be tried with dry_run"
    if values.get("backoff_min", 0) > values.get("backoff_max", float("inf")):
        yield "backoff_min: it is longer than backoff_max"
    if values.get("overflow") == Overflow.BURY and entry.channel is None:
        yield 'overflow: only a channel can bury; add channel = "*" for the channels of these topics'


def _without_effect(entries: Sequence[PolicyEntry]) -> Iterator[Mistake]:
    """Yield the keys that nothing could ever follow from."""
    written = {(key, entry.about(key)) for entry in entries for key in entry.written}
    deciding: dict[
        tuple[str, About, str, str | None], PolicyEntry
    ] = {}  # the first entry for each key and pair of patterns
    for entry in entries:
        for key in entry.values:
            about, needed = entry.about(key), KEYS[key].completes
            if needed and not any((it, about) in written for it in needed):
                yield Mistake(entry.line, f"{key}: it has no effect without {' or '.join(needed)}")
            wider = product((ANY, entry.topic), (None, ANY, entry.channel))
            earlier = [deciding[key, about, *patterns] for patterns in wider if (key, about, *patterns) in deciding]
            if earlier:
                line = min(it.line for it in earlier)
                yield Mistake(entry.line, f"{key}: it has no effect, as line {line} decides it for all these")
            deciding.setdefault((key, about, entry.topic, entry.channel), entry)
