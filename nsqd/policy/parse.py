"""Parses a policy file:

    [[policy]]                 # for each key, the first entry that matches and has the key decides
    topic = "orders.*"         # * is any text; without this line: all topics
    channel = "billing"        # with this line, the keys below apply to these channels
    max_attempts = 10
    max_rate = "500/s"

We refuse unknown keys, and keys that can't have an effect. For example, ignoring a misspelt limit would mean no limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Final

from nsqcommon.entries_file import BadEntries, Mistake, entries_in
from nsqcommon.name_patterns import is_pattern
from nsqd.broker.rules import Overflow
from nsqd.policy.keys import KEYS, About, parse_flag
from nsqd.policy.policies import ANY, Policies, PolicyEntry

_SELECTORS: Final = ("topic", "channel", "dry_run")


def parse_policies(text: str) -> Policies:
    """Parse the text of a policy file. Raises BadEntries."""
    entries: list[PolicyEntry] = []
    mistakes: list[Mistake] = []
    for line, table in entries_in(text, "policy"):
        entry, wrong = _entry(line, table)
        mistakes += [Mistake(line, text) for text in wrong]
        entries.append(entry)
    mistakes += _without_effect(entries)
    if mistakes:
        raise BadEntries(mistakes)
    return Policies(entries)


def _entry(line: int, table: Mapping[str, Any]) -> tuple[PolicyEntry, list[str]]:
    """Return the entry without its invalid parts, and its mistakes."""
    wrong = [
        f"{key}: {table[key]!r} is neither a name nor a pattern"
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
            wrong.append(f"{key}: {error}, not {value!r}")
    if not table.keys() - set(_SELECTORS):
        wrong.append("the entry has no rules")
    written = {key: value for key, value in table.items() if key in KEYS}  # even if the value is invalid
    channel = table.get("channel")
    topic = table.get("topic", ANY)
    entry = PolicyEntry(line, str(topic), None if channel is None else str(channel), written, values, is_dry)
    return entry, wrong + list(_contradictions(entry))


def _contradictions(entry: PolicyEntry) -> Iterator[str]:
    values = entry.values
    for key in values:
        if entry.channel is not None and KEYS[key].about is About.TOPICS:
            yield f"{key}: it applies to topics, so it cannot be in an entry with a channel"
        if entry.is_dry and not KEYS[key].may_be_dry:
            yield f"{key}: it has no dry run"
    if values.get("backoff_min", 0) > values.get("backoff_max", float("inf")):
        yield "backoff_min: it is longer than backoff_max"
    if "order" in values and values.get("max_in_flight_per_group", 1) > 1:
        yield 'max_in_flight_per_group: order = "group" allows only 1'
    if values.get("overflow") == Overflow.BURY and entry.channel is None:
        yield 'overflow: only a channel can bury; add channel = "*" for the channels of these topics'


def _without_effect(entries: Sequence[PolicyEntry]) -> Iterator[Mistake]:
    """Yield a mistake for each key that can't have an effect.

    Either the key needs another one that no entry has, or an earlier entry with the same or a wider pattern decides it.
    """
    written = {(key, entry.about(key)) for entry in entries for key in entry.written}
    deciding: dict[tuple[str, About, str, str | None], PolicyEntry] = {}  # the first one per key and patterns
    for entry in entries:
        for key in entry.values:
            about, needed = entry.about(key), KEYS[key].needs
            if needed and not any((it, about) in written for it in needed):
                yield Mistake(entry.line, f"{key}: it has no effect without {' or '.join(needed)}")
            wider = product((ANY, entry.topic), (None, ANY, entry.channel))
            earlier = [deciding[key, about, *patterns] for patterns in wider if (key, about, *patterns) in deciding]
            if earlier:
                line = min(it.line for it in earlier)
                yield Mistake(entry.line, f"{key}: it has no effect, because line {line} decides it for all of these")
            deciding.setdefault((key, about, entry.topic, entry.channel), entry)


def doubts(policies: Policies) -> Iterator[Mistake]:
    """Yield a warning for each rule that is valid, and that you may regret.

    With `order`, the failed message of a group comes again before its later ones. So without `max_attempts`, a message
    that can never be handled stops its group for ever. Another entry may have `max_attempts`, if it applies to all of
    the same channels.
    """
    enough = {(it.topic, it.channel) for it in policies.entries if "max_attempts" in it.values and not it.is_dry}
    for entry in policies.entries:
        wider = set(product((ANY, entry.topic), (None, ANY, entry.channel)))
        if "order" in entry.values and not wider & enough:
            text = "order: without max_attempts, a message that always fails stops its group for ever"
            yield Mistake(entry.line, text)
