"""A relay's rounds, on a clock that jumps, with a table and an nsqd that are fakes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from nsqclient import ConnectError, OutcomeUnknown, PublishRejected
from nsqtools import outbox_to_nsq
from nsqtools.outbox import OutboxRow, RelayCounts
from nsqtools.outbox_nodes import Nodes
from nsqtools.outbox_tables import DatabaseDown, OutboxTable
from nsqtools.outbox_to_nsq import Options, Relay


class Table:
    """The outbox of two rows; it notes what becomes of them."""

    def __init__(self) -> None:
        self.unsent = [row(1), row(2)]
        self.doubtful: dict[str, list[OutboxRow]] = {}
        self.marked: list[int] = []
        self.refused: list[tuple[int, str, bool]] = []

    def claim(self, node: str, *, count: int, due_within: float) -> list[OutboxRow]:
        taken, self.unsent = self.unsent[:count], self.unsent[count:]
        if taken:
            self.doubtful.setdefault(node, []).extend(taken)
        return taken

    def nodes_in_doubt(self) -> list[str]:
        return [node for node, rows in self.doubtful.items() if rows]

    def in_doubt(self, node: str, count: int) -> list[OutboxRow]:
        return self.doubtful[node][:count]

    def give_up(self, error: str, seconds: float) -> list[tuple[int, str]]:
        return []

    def sent(self, rows: Sequence[OutboxRow], *, delete: bool) -> None:
        self.marked += [it.id for it in rows]
        self._forget(rows)

    def release(self, rows: Sequence[OutboxRow]) -> None:
        self._forget(rows)
        self.unsent += rows

    def refuse(self, row: OutboxRow, error: str, *, is_certain: bool) -> None:
        self.refused.append((row.id, error, is_certain))
        self._forget([row])

    def _forget(self, rows: Sequence[OutboxRow]) -> None:
        for node in self.doubtful:
            self.doubtful[node] = [it for it in self.doubtful[node] if it not in rows]


def row(number: int) -> OutboxRow:
    return OutboxRow(number, "t", b"%d" % number, None, f"key-{number}", None, None)


class Receipt:
    def __init__(self, error: Exception | None) -> None:
        self.done = True
        self.error = error

    async def wait(self) -> None:
        await trio.lowlevel.checkpoint()


class Node:
    """One nsqd and the producer for it. `answers` are its next ones; then it accepts everything."""

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)
        self.got: list[tuple[bytes, str]] = []
        self.failures: list[str] = []

    async def next(self) -> str | None:
        await trio.lowlevel.checkpoint()
        return "n:1"

    async def producer(self, address: str) -> Node:
        await trio.lowlevel.checkpoint()
        return self

    def failed(self, address: str, reason: str) -> None:
        self.failures.append(reason)

    def succeeded(self, address: str) -> None:
        pass

    async def submit(
        self, topic: str, body: bytes, *, delay: float | None, key: str, headers: Mapping[str, str] | None
    ) -> Receipt:
        await trio.lowlevel.checkpoint()
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, ConnectError):
            raise answer
        self.got.append((body, key))
        return Receipt(answer)


def play(table: Table, node: Node, *, rounds: int = 1, clock: MockClock | None = None) -> RelayCounts:
    """Let a relay do so many rounds."""
    options = Options(database="sqlite:///x", nsqd_tcp_address=("n:1",))
    counts = RelayCounts()

    async def main() -> None:
        relay = Relay(options, cast(OutboxTable, table), cast(Nodes, node), counts)
        for _ in range(rounds):
            await relay.round()

    trio.run(main, clock=clock)
    return counts


def test_a_batch_is_published_and_marked() -> None:
    table, node = Table(), Node()
    assert play(table, node, rounds=2).sent == 2
    assert node.got == [(b"1", "key-1"), (b"2", "key-2")]
    assert table.marked == [1, 2]


def test_what_had_no_answer_is_in_doubt() -> None:
    table, node = Table(), Node(OutcomeUnknown("lost", "key-1"))
    counts = play(table, node)
    assert (table.marked, counts.in_doubt) == ([2], 1)


def test_what_is_in_doubt_is_repeated_with_its_key() -> None:
    table, node = Table(), Node(OutcomeUnknown("lost", "key-1"))
    counts = play(table, node, rounds=2)
    assert node.got[-1] == (b"1", "key-1")
    assert table.marked == [2, 1]
    assert (counts.sent, counts.repeated, counts.in_doubt) == (2, 1, 0)


def test_what_was_never_sent_goes_back() -> None:
    table, node = Table(), Node(ConnectError("refused"))
    play(table, node)
    assert [it.id for it in table.unsent] == [1, 2]
    assert node.got == []
    assert node.failures == ["refused"]


@pytest.mark.parametrize("is_repeat", [False, True])
def test_a_refusal_is_certain_only_at_the_first_try(is_repeat: bool) -> None:
    table, node = Table(), Node(PublishRejected("E_BAD_MESSAGE", "E_BAD_MESSAGE too big"))
    if is_repeat:
        table.doubtful["n:1"], table.unsent = table.unsent, []
    play(table, node)
    ((number, error, is_certain),) = table.refused
    assert (number, is_certain) == (1, not is_repeat)
    assert error.startswith("outcome unknown") is is_repeat
    assert table.marked == [2]


class StandingStill(Table):
    """A table whose answers come after so many seconds, as for a relay that was stopped meanwhile."""

    def __init__(self, clock: MockClock, seconds: float) -> None:
        super().__init__()
        self._clock = clock
        self._seconds = seconds

    def _jump(self) -> None:
        trio.from_thread.run_sync(self._clock.jump, self._seconds)

    def claim(self, node: str, *, count: int, due_within: float) -> list[OutboxRow]:
        self._jump()
        return super().claim(node, count=count, due_within=due_within)

    def in_doubt(self, node: str, count: int) -> list[OutboxRow]:
        self._jump()
        return super().in_doubt(node, count)


@pytest.mark.parametrize(("seconds", "sent"), [(539, 2), (541, 0)])
def test_a_relay_that_stood_still_for_too_long_sends_nothing(seconds: float, sent: int) -> None:
    """Another relay may have published the row meanwhile, and nsqd may have forgotten its key."""
    clock = MockClock()
    table, node = StandingStill(clock, seconds), Node()
    play(table, node, clock=clock)
    assert len(node.got) == len(table.marked) == sent
    assert len(table.doubtful["n:1"]) == 2 - sent


@pytest.mark.parametrize(("seconds", "sent"), [(29, 2), (31, 0)])
def test_a_repeat_does_not_begin_when_its_time_is_over(seconds: float, sent: int) -> None:
    clock = MockClock()
    table, node = StandingStill(clock, seconds), Node()
    table.doubtful["n:1"], table.unsent = table.unsent, []
    play(table, node, clock=clock)
    assert len(node.got) == len(table.marked) == sent


def test_a_database_that_lets_a_relay_in_and_then_refuses_is_left_alone_for_longer_each_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stop = trio.Event()

    class Refusing(Table):
        def check(self) -> None:
            if len(caplog.records) == 3:
                trio.from_thread.run_sync(stop.set)
            raise DatabaseDown("read-only")

        def close(self) -> None:
            pass

    monkeypatch.setattr(outbox_to_nsq, "open_outbox", lambda url, table: Refusing())
    options = Options(database="sqlite:///x", nsqd_tcp_address=("n:1",))

    async def main() -> None:
        await outbox_to_nsq._relay(options, cast(Nodes, Node()), RelayCounts(), stop)

    trio.run(main, clock=MockClock(autojump_threshold=0))
    pauses = [record.getMessage().rpartition(" in ")[2] for record in caplog.records]
    assert pauses == ["0.5 s", "1 s", "2 s", "4 s"]
