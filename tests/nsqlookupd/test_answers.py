"""Answers with very many names are made in steps, so that other clients do not wait for one of them."""

from __future__ import annotations

import json
from collections.abc import Iterator

from nsqlookupd.answers import channels_json, lookup_json
from nsqlookupd.registry import LookupAnswer
from tests.nsqlookupd.test_registry import Directory

MANY = 20_000
STEPS = MANY // 2000  # steps of the sorting alone


def crowded() -> Directory:
    """Make a topic with very many channels, registered in no particular order."""
    directory = Directory()
    nsqd = directory.nsqd()
    for number in range(MANY):
        directory.register(nsqd, "t", f"c{number * 7919 % MANY}")
    return directory


def answer_of(directory: Directory) -> LookupAnswer:
    answer = directory.lookup("t")
    assert answer is not None
    return answer


def joined(pieces: Iterator[bytes]) -> tuple[bytes, int]:
    taken = list(pieces)
    return b"".join(taken), len(taken)


def test_channels_of_a_topic_with_very_many_come_in_steps() -> None:
    directory = crowded()
    text, steps = joined(channels_json(directory.channels("t")))
    assert json.loads(text) == {"channels": sorted(f"c{number}" for number in range(MANY))}
    assert steps > STEPS


def test_lookup_of_a_topic_with_very_many_channels_comes_in_steps() -> None:
    directory = crowded()
    text, steps = joined(lookup_json(answer_of(directory)))
    found = json.loads(text)
    assert found["channels"] == sorted(f"c{number}" for number in range(MANY))
    assert [it["broadcast_address"] for it in found["producers"]] == ["a"]
    assert steps > STEPS
    assert joined(lookup_json(answer_of(directory))) == (text, 1)  # the answer is kept


def test_few_channels_are_in_order_as_well() -> None:
    directory = Directory()
    nsqd = directory.nsqd()
    for name in ("b", "a"):
        directory.register(nsqd, "t", name)
    assert b"".join(channels_json(directory.channels("t"))) == b'{"channels":["a","b"]}'
    assert b"".join(channels_json(directory.channels("u"))) == b'{"channels":[]}'
    assert b"".join(lookup_json(answer_of(directory))).startswith(b'{"channels":["a","b"],"producers":[{')
