"""What the ledger lets a start drop after a power cut: only what the journal takes for new."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from nsqd.broker.rules import NO_CHANNEL_RULES, Overflow, TopicRules
from tests.planted.planting import planted
from tests.simulation.disk import Crash
from tests.simulation.life import Life, small_journal
from tests.simulation.promise import Violation

DROPS_ALL_BUT_ONE = TopicRules(max_messages=1, overflow=Overflow.DROP_OLDEST)


@pytest.fixture
def life() -> Iterator[Life]:
    """A life in which a channel has three messages, and nothing of this can be lost any more."""
    with small_journal():
        life = Life(Random(0))
        life.start(Crash.KILL)
        with life.turn():
            life.create_channel("t", "c")
            life.publish("t", 3)
        assert life.make_durable()
        yield life


def restart(life: Life, crash: Crash) -> None:
    life.crash(crash)
    life.start(crash)


def deliver_one(life: Life) -> None:
    with life.turn():
        life.subscribe("t", "c", ready=1, timeout=60.0)


def waiting(life: Life) -> list[int]:
    return sorted(life.ledger.topics["t"].channels["c"].owed)


def test_a_start_may_drop_what_was_new_at_an_earlier_start_if_the_power_cut_took_its_delivery(life: Life) -> None:
    restart(life, Crash.KILL)
    deliver_one(life)
    life.change_rules(NO_CHANNEL_RULES, DROPS_ALL_BUT_ONE)
    restart(life, Crash.FORGETS_ALL)
    assert waiting(life) == [2]


def test_a_start_may_drop_what_a_seek_made_new_if_the_power_cut_took_its_delivery(life: Life) -> None:
    with life.turn():
        life.seek(life.ledger.topics["t"], "c", 3)
    with life.turn():
        life.seek(life.ledger.topics["t"], "c", 0)
    assert life.make_durable()
    deliver_one(life)
    life.change_rules(NO_CHANNEL_RULES, DROPS_ALL_BUT_ONE)
    restart(life, Crash.FORGETS_ALL)
    assert waiting(life) == [2]


def test_a_start_keeps_what_the_journal_knows_to_be_delivered(life: Life) -> None:
    restart(life, Crash.KILL)
    deliver_one(life)
    life.pass_time(1.0)
    assert life.make_durable()
    life.change_rules(NO_CHANNEL_RULES, DROPS_ALL_BUT_ONE)
    restart(life, Crash.FORGETS_ALL)
    assert waiting(life) == [0, 2]


def test_a_start_that_drops_it_is_found(life: Life) -> None:
    life.change_rules(NO_CHANNEL_RULES, TopicRules(max_messages=3, overflow=Overflow.DROP_OLDEST))
    with planted("the journal does not know what was delivered before a crash"):
        restart(life, Crash.KILL)
        deliver_one(life)
        life.change_rules(NO_CHANNEL_RULES, DROPS_ALL_BUT_ONE)
        with pytest.raises(Violation, match="the start has dropped 0, which somebody wants"):
            restart(life, Crash.KILL)
