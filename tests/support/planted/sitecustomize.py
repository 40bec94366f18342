"""Bugs for a broker that a checker has to find. Python runs this at its start if PYTHONPATH has this folder.

NSQ_PLANTED names the bug. Nothing in the product knows of this; it works only with the pure Python core.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count
from typing import Any, Final

EARLY: Final = 300_000  # microseconds


def plant(bug: str) -> None:
    planted = {
        "drop one": _drop_one,
        "deliver early": _deliver_early,
        "deliver finished ones again": _deliver_finished_ones_again,
        "forget finishes": _forget_finishes,
        "attempts go down": _attempts_go_down,
        "forget burials": _forget_burials,
        "kick to all channels": _kick_to_all_channels,
        "one attempt too many": _allow_one_attempt_too_many,
        "relay dies after the claim": _relay_dies_after("claim"),
        "relay dies before the mark": _relay_dies_before("sent"),
        "relay dies after the mark": _relay_dies_after("sent"),
        "relay forgets its nodes": _relay_forgets_its_nodes,
    }
    planted[bug]()


def _replace(owner: type, method: str, planted: Callable[..., Any]) -> None:
    assert hasattr(owner, method), method
    setattr(owner, method, planted)


def _each(nth: int) -> Callable[[], bool]:
    numbers = count(1)
    return lambda: next(numbers) % nth == 0


def _drop_one() -> None:
    from nsqd.broker.channel import Channel

    deliver, is_its_turn = Channel._deliver, _each(100)

    def dropping(
        self: Channel, consumer: Any, batch: Any, first: int, stop: int, attempts: int, now: float, *, retry: bool
    ) -> None:
        if is_its_turn():
            self._finished.append((first, first + 1))
            first += 1
        if first < stop:
            deliver(self, consumer, batch, first, stop, attempts, now, retry=retry)

    _replace(Channel, "_deliver", dropping)


def _deliver_early() -> None:
    from nsqd.broker.positions import Deferred

    next_due, pop_due = Deferred.next_due, Deferred.pop_due

    def early(self: Deferred) -> int | None:
        due = next_due(self)
        return None if due is None else due - EARLY

    _replace(Deferred, "next_due", early)
    _replace(Deferred, "pop_due", lambda self, until, most: pop_due(self, until + EARLY, most))


def _deliver_finished_ones_again() -> None:
    from nsqd.broker.channel import Channel

    finish, is_its_turn = Channel.finish, _each(100)

    def again(self: Channel, consumer: Any, ids: Any) -> Any:
        delivery = self.in_flight.find(consumer, ids[0])
        if is_its_turn() and not isinstance(delivery, bytes):
            self.retries.add(delivery.sequence_of(ids[0]), delivery.attempts)
        return finish(self, consumer, ids)

    _replace(Channel, "finish", again)


def _forget_finishes() -> None:
    from nsqd.broker.channel import Channel

    record_progress, is_its_turn = Channel.record_progress, _each(20)

    def forgetting(self: Channel, *, urgent: bool = False) -> None:
        if is_its_turn():
            self.in_flight.take_finished()
        record_progress(self, urgent=urgent)

    _replace(Channel, "record_progress", forgetting)


def _attempts_go_down() -> None:
    from nsqd.broker.positions import Retries

    add, is_its_turn = Retries.add, _each(10)

    def lower(self: Retries, sequence: int, attempts: int) -> None:
        add(self, sequence, max(0, attempts - 2) if is_its_turn() else attempts)

    _replace(Retries, "add", lower)


def _forget_burials() -> None:
    from nsqd.broker.channel import Channel

    restore = Channel.restore

    def forgetting(self: Channel, state: Any, wall_ms_to_due: Callable[[int], int]) -> None:
        state.buried.clear()
        restore(self, state, wall_ms_to_due)

    _replace(Channel, "restore", forgetting)


def _kick_to_all_channels() -> None:
    from nsqd.broker.channel import Channel

    carry_out = Channel._carry_out

    def to_all(self: Channel, taken: Any) -> int:
        topic: Any = self.topic
        for other in topic.channels.values() if taken.verb == "kick" else ():
            if other is not self:
                other.redeliver(taken.sequences)
        return carry_out(self, taken)

    _replace(Channel, "_carry_out", to_all)


def _allow_one_attempt_too_many() -> None:
    from nsqd.broker.channel import Channel

    is_last = Channel._is_last
    _replace(Channel, "_is_last", lambda self, attempts: is_last(self, attempts - 1))


def _relay_dies_before(step: str) -> Callable[[], None]:
    def plant() -> None:
        from nsqtools.outbox_tables import Outbox

        _replace(Outbox, step, lambda *arguments, **named: os._exit(137))

    return plant


def _relay_dies_after(step: str) -> Callable[[], None]:
    def plant() -> None:
        from nsqtools.outbox_tables import Outbox

        do = getattr(Outbox, step)

        def dying(*arguments: Any, **named: Any) -> None:
            do(*arguments, **named)
            os._exit(137)

        _replace(Outbox, step, dying)

    return plant


def _relay_forgets_its_nodes() -> None:
    from nsqtools.outbox_tables import Outbox

    check = Outbox.check

    def forgetting(self: Outbox) -> None:
        check(self)
        for node in self.nodes_in_doubt():
            rows = self.in_doubt(node, 1000)
            self.release(rows)
        self._link.run("UPDATE outbox SET key = NULL WHERE sent_at IS NULL")

    _replace(Outbox, "check", forgetting)


plant(os.environ["NSQ_PLANTED"])
