"""Periodic jobs, on a clock that jumps."""

from __future__ import annotations

import gc
import weakref
from functools import partial
from itertools import chain, repeat
from threading import Event

import pytest
import trio
import trio.testing

from nsqcommon.turn import in_turn
from nsqcommon.wire.commands import pub
from nsqd import timers
from nsqd.broker.idle import Expired
from nsqd.broker.rules import ChannelRules, Overflow
from nsqd.turn import Turn
from tests.support.fake_store import tell_nobody
from tests.support.given_rules import GivenRules
from tests.support.node import Node, NodeTurn, TurnStore


class Unsaved:
    def write_journal(self, *, force: bool = False) -> bool:
        return True

    def names_changed(self, names: object) -> None:
        pass


def test_retention_reaches_idle_topics() -> None:
    node = Node()
    client = node.client()
    for number in range(250):  # more than are looked at in one turn
        client.say(pub(f"t{number}", b"a"))
        node.store.logs[f"t{number}"].outdated_before = 1

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(timers.apply_retention, node.broker, NodeTurn(node), lambda: 60.0)
            await trio.sleep(59)
            assert [log.released for log in node.store.logs.values()] == [0] * 250
            await trio.sleep(2)
            assert [log.released for log in node.store.logs.values()] == [1] * 250
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_without_retention_nobody_looks() -> None:
    node = Node()
    trio.run(timers.apply_retention, node.broker, NodeTurn(node), lambda: None)


def test_publishes_that_wait_for_a_removal_go_on_although_nothing_else_happens() -> None:
    """A removal that fails begins no turn, and their publishers may send nothing before they are answered."""

    node = Node(policy=GivenRules(ChannelRules(max_messages=3, overflow=Overflow.DROP_OLDEST)))
    topic = node.broker.topic("t")
    topic.channel("c")

    async def main() -> None:
        turn = Turn(node.broker, TurnStore(node), announce=tell_nobody, flush=lambda: None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(timers.retry_postponed, node.broker, turn)
            await trio.testing.wait_all_tasks_blocked()
            node.store.logs["t"].waits = True
            with in_turn(turn):
                receipt = topic.publish_one(b"\0\0\0\2ab")
            answered = trio.Event()
            receipt.when_settled(answered.set)
            await trio.sleep(1)
            assert not answered.is_set()
            node.store.logs["t"].waits = False
            with trio.fail_after(30):
                await answered.wait()
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


class Cycle:
    def __init__(self) -> None:
        self.itself = self


def test_while_there_are_changes_young_garbage_is_collected_whatever_the_interpreter_counts() -> None:
    node = Node()
    client = node.client()
    turn = Turn(node.broker, TurnStore(node), announce=tell_nobody, flush=lambda: None)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(timers.save_progress, node.broker, turn, Unsaved())
            await trio.sleep(1)
            garbage = weakref.ref(Cycle())
            await trio.sleep(60)
            assert garbage() is not None
            client.say(pub("t", b"a"))
            turn.progress_made.set()
            await trio.sleep(0.1)
            assert garbage() is None
            nursery.cancel_scope.cancel()

    gc.disable()
    try:
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    finally:
        gc.enable()


def test_leftovers_are_freed_although_nothing_else_happens() -> None:
    node = Node()
    node.broker.turn.reclaimer.add(list(range(100_000)))

    async def main() -> None:
        turn = Turn(node.broker, TurnStore(node), announce=tell_nobody, flush=lambda: None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(timers.reclaim_memory, node.broker, turn)
            await trio.sleep(1)
            assert node.broker.turn.reclaimer.is_empty
            with in_turn(turn):
                node.broker.turn.reclaimer.add(dict.fromkeys(range(100_000)))
            await trio.sleep(1)
            assert node.broker.turn.reclaimer.is_empty
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_memory_is_returned_after_a_crowd() -> None:
    class Sessions:
        sessions_gone = 0

    sessions = Sessions()
    returned: list[bool] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            give_back = partial(returned.append, True)
            nursery.start_soon(partial(timers.return_memory, sessions, give_back=give_back))
            await trio.sleep(60.5)
            sessions.sessions_gone = 99
            await trio.sleep(60)
            assert not returned
            sessions.sessions_gone = 150
            await trio.sleep(30)
            assert len(returned) == 1
            await trio.sleep(300)
            assert len(returned) == 1
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_only_a_change_of_the_data_path_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers, "_PLACE_INTERVAL", 0.05)
    looks = 0
    found = iter(["here", "here", "moved away", "moved away", "here"])

    def look() -> str:
        nonlocal looks
        looks += 1
        return next(found, "here")

    async def main() -> None:
        send, told = trio.open_memory_channel[str](10)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(timers.watch_data_path, look, send.send_nowait)
            with trio.fail_after(30):
                assert [await told.receive() for _ in range(3)] == ["here", "moved away", "here"]
            nursery.cancel_scope.cancel()

    trio.run(main)
    before = looks
    Event().wait(3 * timers._PLACE_INTERVAL)
    assert looks <= before + 1, "the thread goes on after the daemon has ended"  # one look may have begun before


def test_a_full_disk_is_noticed_within_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the seconds for which it means to wait, as a busy machine makes it wait for longer."""
    waits: list[float | None] = []

    class Quick(Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            return super().wait(0)

    monkeypatch.setattr(timers, "Event", Quick)
    found = chain(["room"] * 10, repeat("full"))

    async def main() -> None:
        send, told = trio.open_memory_channel[str](2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(timers.watch_data_path, partial(next, found), send.send_nowait)
            with trio.fail_after(100):
                assert [await told.receive() for _ in range(2)] == ["room", "full"]
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert len(waits) >= 11
    assert all(wait is not None and wait < 1 for wait in waits)


def test_what_expires_is_told_once() -> None:
    dry = ChannelRules(expire_after=10.0, dry=frozenset({"expire_after"}))
    node = Node(policy=GivenRules(dry))
    node.broker.topic("t").channel("c")
    told: list[Expired] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(timers.expire_idle, node.broker, NodeTurn(node), lambda: 1.0, told.append)
            node.pass_time(20.0)
            await trio.sleep(5.5)
            assert told == [Expired("t", "c", 10.0, True)]
            node.policy = GivenRules(ChannelRules(expire_after=10.0))
            node.broker.turn.rules = node.policy
            node.broker.rules_changed(["t"])
            await trio.sleep(5.5)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert told == [Expired("t", "c", 10.0, True), Expired("t", "c", 10.0, False)]
    assert node.broker.topics["t"].channels == {}
