"""Lives with groups: short forms of `python -m tests.simulation groups`, and does the checker notice?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Final

import pytest

from nsqd.broker.rules import ChannelRules
from tests.planted.planting import bugs_for, planted
from tests.simulation import grouping
from tests.simulation.disk import Crash
from tests.simulation.grouping import LONGEST, NOBODY, group_of
from tests.simulation.life import Client, Life, small_journal
from tests.simulation.plans import GROUPS
from tests.simulation.promise import Violation
from tests.simulation.simulation import run
from tests.simulation.test_simulation import check
from tests.support.lengths import sized
from tests.support.slices import slices_of

ORDER: Final = ChannelRules(order="group")
SEEDS: Final[Sequence[int]] = sized(short=(), long=range(300))  # besides those of FINDS
SMALL_SLICES: Final[Sequence[int]] = sized(short=(5,), long=range(300))
SIZES: Final[Sequence[int]] = sized(short=(1,), long=(1, 2))
# Which bug a life finds: see `FINDS` of test_simulation.py.
STARVES: Final = "new messages starve while groups have something waiting"  # found by a script
FINDS: Final[dict[int, tuple[str, ...]]] = {
    6: (
        "two messages of an ordered group are in flight",
        "a requeued message comes after the later ones of its group",
        "a crash forgets held messages",
        "held messages are forgotten when the rules change",
        "more messages are held than max_held allows",
    ),
    7: (
        "a message that waits for its backoff holds up nothing",
        "the place of a message that failed is not freed",
        "a large group goes first although groups should share",
    ),
    10: (
        "a restart loses the order of a group",
        "a group that has a free place again is not looked at",
        "a group is stopped by a message that was cancelled",
        "the journal is not told that a held message was delivered",
        "the place of a finished message is not freed",
    ),
    12: ("one message too many is in flight",),
}


def test_random_lives() -> None:
    for seed in (*FINDS, *SEEDS):
        check("groups", seed, GROUPS)


@pytest.mark.parametrize("size", SIZES)
def test_random_lives_in_which_slices_are_as_small_as_can_be(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "PATIENCE", 100)
    with slices_of(size):
        for seed in SMALL_SLICES:
            check("groups", seed, GROUPS)


def serve_beside_a_large_group() -> Client:
    """Live a life in which a new message comes while the messages of a large group wait for their turns."""
    with small_journal():
        life = Life(Random(0))
        life.start(Crash.KILL)
        life.change_rules(ORDER)
        publish(life, "a" * 30 + "b")
        client = consumer(life, ready=2)
        publish(life, "c")
        while first := [message_id for message_id, sequence in client.in_hand.items() if sequence < 30]:
            with life.turn():
                life.finish(client, first)
        return client


def test_a_new_message_comes_beside_a_large_group() -> None:
    assert in_hand(serve_beside_a_large_group()) == [30, 31]


def test_a_planted_bug_that_lets_it_starve_is_found() -> None:
    with planted(STARVES), pytest.raises(Violation, match="group b'c' waits with 31"):
        serve_beside_a_large_group()


def test_lives_name_bugs_that_are_planted() -> None:
    assert {bug for bugs in FINDS.values() for bug in bugs} == {*bugs_for("groups simulation")} - {STARVES}


@pytest.mark.parametrize("bug", [bug for bug in bugs_for("groups simulation") if bug != STARVES])
def test_a_planted_bug_is_found(bug: str) -> None:
    found_by_first = sorted([*FINDS, *SEEDS], key=lambda seed: bug not in FINDS.get(seed, ()))
    with planted(bug):
        assert any(run(seed, GROUPS).error for seed in found_by_first)


# Does the checker notice?


@pytest.mark.parametrize(
    ("value", "group"),
    [
        (None, NOBODY),
        (b"", NOBODY),
        (b"a", b"a"),
        ("\u00fc".encode(), "\u00fc".encode()),
        (b"\xff", NOBODY),
        (b"l" * LONGEST, b"l" * LONGEST),
        (b"l" * (LONGEST + 1), NOBODY),
    ],
)
def test_a_bad_value_is_no_group(value: bytes | None, group: bytes) -> None:
    assert group_of(value) == group


@pytest.fixture
def life() -> Iterator[Life]:
    """A life whose broker has no rules about groups. A test may tell the checker that it has."""
    with small_journal():
        life = Life(Random(0))
        life.start(Crash.KILL)
        yield life


def publish(life: Life, groups: str) -> None:
    """Publish a message for each letter."""
    with life.turn():
        life.create_channel("t", "c")
        life.publish("t", len(groups), groups=[group.encode() for group in groups])


def consumer(life: Life, ready: int) -> Client:
    with life.turn():
        return life.subscribe("t", "c", ready=ready, timeout=20.0)


def in_hand(client: Client) -> list[int]:
    return sorted(client.in_hand.values())


def finish(life: Life, client: Client, *, times: int = 1) -> None:
    for _ in range(times):
        with life.turn():
            life.finish(client, list(client.in_hand))


def requeue(life: Life, client: Client, delay: float) -> None:
    with life.turn():
        life.requeue(client, next(iter(client.in_hand)), delay)


@pytest.mark.parametrize("rules", [ORDER, ChannelRules(max_in_flight_per_group=1)])
def test_two_of_a_group_in_flight_are_found(life: Life, rules: ChannelRules) -> None:
    publish(life, "aa")
    life.ledger.rules = rules
    with pytest.raises(Violation, match=r"\[0, 1\] of group b'a' are in flight, 1 may"):
        consumer(life, ready=2)


def test_two_without_a_group_are_none(life: Life) -> None:
    publish(life, "ab")
    with life.turn():
        life.publish("t", 2, groups=[None, b"\xff"])
    life.ledger.rules = ORDER
    assert in_hand(consumer(life, ready=4)) == [0, 1, 2, 3]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_message_before_one_that_was_requeued_is_found(life: Life, restarts: bool) -> None:
    publish(life, "aa")
    client = consumer(life, ready=1)
    with life.turn():
        life.set_ready(client, 0)
    requeue(life, client, 5.0)
    if restarts:
        life.pass_time(0.5)
        life.crash(Crash.KILL)
        life.start(Crash.KILL)
    life.ledger.rules = ORDER
    with pytest.raises(Violation, match="1 is delivered before 0, which is of the same group"):
        consumer(life, ready=1)


def test_a_message_that_is_not_due_holds_up_nothing(life: Life) -> None:
    with life.turn():
        life.create_channel("t", "c")
        life.publish("t", 1, delay=5.0, groups=[b"a"])
    publish(life, "a")
    life.ledger.rules = ORDER
    assert in_hand(consumer(life, ready=1)) == [1]


def test_a_kicked_message_may_come_after_later_ones(life: Life) -> None:
    life.change_rules(ORDER)
    publish(life, "aaa")
    client = consumer(life, ready=1)
    with life.turn():
        life.bury(client, next(iter(client.in_hand)))
    assert in_hand(client) == [1]
    with life.turn():
        life.take_buried(life.ledger.topics["t"], "c", "kick", [0])
    finish(life, client)
    assert in_hand(client) == [0]
    finish(life, client)
    assert in_hand(client) == [2]


def test_a_group_that_others_do_not_let_have_its_turn_is_found(life: Life) -> None:
    publish(life, "aaaaaab")
    life.ledger.rules = ChannelRules(share="group")
    client = consumer(life, ready=1)
    with pytest.raises(Violation, match=r"group b'b' waits with 6, and others got {b'a': 5}"):
        finish(life, client, times=6)


def test_a_weight_allows_more(life: Life) -> None:
    publish(life, "aaaaaab")
    life.ledger.rules = ChannelRules(share="group", weights=(("a", 2),))
    client = consumer(life, ready=1)
    finish(life, client, times=6)
    assert in_hand(client) == [6]
