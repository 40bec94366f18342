"""A fixed script with every action of a broker that touches the disk, to be cut at each of its calls."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Final
from unittest import mock

from tests.simulation.disk import CHANGING, Call, Crash, SimulatedDisk, Stopped
from tests.simulation.life import Life, small_journal

ACKS: Final = ("memory", "written", "synced")


def play(life: Life) -> None:
    life.start(Crash.KILL)
    with life.turn():
        life.publish("orders", 3, size=50)
    with life.turn():
        reader = life.subscribe("orders", "mail", ready=4, timeout=5.0)
        life.create_channel("orders", "audit")
    life.pass_time(0.3)
    with life.turn():
        life.publish("orders", 2, size=200, single=True)
        life.publish("orders", 1, delay=1.0)
        life.publish("clicks", 2, delay=30.0)
    with life.turn():
        first, second, *_ = reader.in_hand
        life.finish(reader, [first])
        life.requeue(reader, second, 0.0)
    with life.turn():
        life.requeue(reader, next(iter(reader.in_hand)), 2.0)
    for _ in range(4):  # enough to end segments and rotate the journal
        with life.turn():
            life.publish("orders", 4, size=150)
            life.finish(reader, list(reader.in_hand))
        life.pass_time(0.4)
    with life.turn():
        life.pause_topic(life.ledger.topics["orders"], True)
    life.make_durable()
    with life.turn():
        life.publish("orders", 2)
        life.create_channel("clicks", "mail")
        life.pause_channel(life.ledger.topics["clicks"], "mail", True)
    life.make_durable()
    with life.turn():
        life.empty_channel(life.ledger.topics["orders"], "audit")
    life.make_durable()
    with life.turn():
        life.pause_topic(life.ledger.topics["orders"], False)
        life.delete_channel(life.ledger.topics["orders"], "audit")
    life.make_durable()
    with life.turn():
        life.delete_topic(life.ledger.topics["clicks"])
    life.make_durable()
    with life.turn():
        life.publish("clicks", 2, size=100)
        life.empty_topic(life.ledger.topics["clicks"])
    life.pass_time(1.5)
    life.start(life.stop())
    with life.turn():
        life.publish("orders", 1)
    life.pass_time(0.2)
    life.stop()


def new_life(ack: str, stop_at: int | None = None, torn: float = 0.0) -> Life:
    random = Random(7)  # every run does the same
    disk = SimulatedDisk(random=random, stop_at=stop_at, torn=torn)
    return Life(random, disk=disk, ack=ack, max_bytes_per_file=700, mem_queue_size=4)


@contextmanager
def tiny_journal() -> Iterator[None]:
    """Return settings of a journal that rotates within this short script."""
    with small_journal(), mock.patch("nsqd.log.journal.rotation.ROTATE_AT", 1500):
        yield


def calls(ack: str) -> list[Call]:
    """Return the calls of the whole script after which a crash may leave something else."""
    life = new_life(ack)
    with tiny_journal():
        play(life)
    return [call for call in life.disk.calls if call.kind in CHANGING]


def crashes(call: Call) -> Iterator[tuple[Crash, float]]:
    """Return how the process may end at a call, and how much of a write has reached the page cache by then."""
    for torn in (0.0, 0.5, 1.0) if call.kind == "write" else (0.0,):
        yield Crash.KILL, torn
    for crash in Crash:
        if crash.is_power_cut:
            yield crash, 0.5


def cuts(ack: str) -> list[tuple[Call, Crash, float]]:
    """Return each call of the script with each way in which the process may end there."""
    return [(call, crash, torn) for call in calls(ack) for crash, torn in crashes(call)]


def one_of_each_kind(ack: str, chance: Random) -> list[tuple[Call, Crash, float]]:
    """Return one call of each kind on each kind of file, with each way to end.

    The three values of --ack share them: together they have each kind once.
    """
    kinds: dict[tuple[str, str, Crash, float], list[tuple[Call, Crash, float]]] = {}
    for call, crash, torn in cuts(ack):
        name = re.sub(r"\d[0-9a-f]*", "N", call.path.name)
        kinds.setdefault((call.kind, name, crash, torn), []).append((call, crash, torn))
    own = sorted(kinds)[ACKS.index(ack) :: len(ACKS)]
    return [chance.choice(kinds[kind]) for kind in own]


def cut(ack: str, call: Call, crash: Crash, torn: float) -> None:
    """Stop at the call, and continue with what is left. Raise Violation."""
    life = new_life(ack, stop_at=call.number, torn=torn)
    try:
        with tiny_journal():
            _cut(life, crash)
    except BaseException as error:
        error.add_note(f"ack={ack}, {crash} at {call}, {torn} of it written")
        raise


def _cut(life: Life, crash: Crash) -> None:
    try:
        play(life)
    except Stopped:
        life.crash(crash)
    life.start(crash)
    with life.turn():
        life.publish("orders", 3)
    life.drain()
    life.start(life.stop())
    life.drain()
