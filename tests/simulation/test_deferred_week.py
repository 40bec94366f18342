"""Deferred messages over a week: none early, none lost, however often the broker dies, and none keeps a segment."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from nsqcommon.wire.commands import dpub, fin, mpub, pub, req
from tests.simulation.week import MINUTE, WEEK, Life, play
from tests.support.lengths import sized
from tests.support.quick import unless_quick

MESSAGES = sized(short=unless_quick(4_000, quick=1_000), long=40_000)  # `tests.simulation deferred` takes 100,000


@pytest.mark.parametrize("seed", [1])  # in the test's name, so that a failure shows it
def test_a_week_of_deferred_messages_and_sudden_deaths(tmp_path: Path, seed: int) -> None:
    life, expected = play(tmp_path, messages=MESSAGES, seed=seed, scale=MESSAGES / 40_000)
    assert expected.early == []
    assert expected.fewer == []
    assert len(expected.due) == 0
    assert life.deaths >= 5
    assert life.segments() <= 3
    assert life.compacted_files() <= 1
    assert life.broker.topic("t").channel("c").depth == 0


def test_messages_that_stay_for_ever_do_not_keep_finished_segments(tmp_path: Path) -> None:
    random = Random(5)
    life = Life(tmp_path, random, max_bytes_per_file=10_000, mem_queue_size=10)
    life.subscribe()
    life.publish(pub("t", b"for ever"), dpub("t", int(WEEK * 1000) - 1, b"in a week"))
    ids: dict[bytes, set[bytes]] = {}
    attempts = 0
    for step in range(200):
        life.publish(mpub("t", [b"traffic" + bytes(100)] * 40))
        life.pass_time(MINUTE)
        for message in life.messages():
            ids.setdefault(message.body, set()).add(message.id)
            if message.body == b"for ever":
                assert message.attempts > attempts
                attempts = message.attempts
                life.say(req(message.id, 0 if step % 2 else 30_000))
            else:
                life.say(fin(message.id))
        dies = step % 17 == 16
        life.tend(dies=dies)
        if dies:
            life.subscribe()
        assert max(life.history().values(), default=1) == 1
    life.settle()
    assert attempts > 100
    assert life.segments() <= 2
    assert life.compacted_files() == 1
    assert not {0, 1} & set(life.history())  # readers of history do not see the compacted file's messages
    life.pass_time(WEEK)
    last = {message.body: message for message in life.messages()}
    assert set(last) == {b"for ever", b"in a week"}
    assert {last[b"for ever"].id} == ids[b"for ever"]
    life.say(*(fin(message.id) for message in last.values()))
    life.settle()
    assert life.compacted_files() == 0
