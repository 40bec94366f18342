"""One kind of call fails for a while: publishers get errors, consumers notice nothing, and nsqd recovers by itself."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest
import trio
import trio.testing

from nsqd.ack_option import Ack
from nsqd.log.reading.refusals import READ_PATIENCE
from tests.nsqd.log.harness import OpenStore
from tests.simulation.disk import DATA_PATH, Call, Crash, SimulatedDisk
from tests.support.jumping import run_with_threads

BEFORE_A_RETRY = 0.5  # seconds
TROUBLE = 5.0
HEALING = 5.0
SEGMENT = 61  # bytes: a record of one small message


def in_log(call: Call) -> bool:
    return call.path.suffix == ".log"


def in_journal(call: Call) -> bool:
    return call.path.name.startswith("journal.")


class Refuses(Enum):
    """Which publishers the log refuses."""

    NONE = 0
    SYNCED = 1  # those that wait for the sync
    ALL = 2


@dataclass(frozen=True)
class Case:
    """What fails, and which actions besides publishing cause such calls."""

    name: str
    kinds: tuple[str, ...]
    matches: Callable[[Call], bool] = lambda call: True
    provoke: Callable[[OpenStore], None] = lambda store: None
    refuses: Refuses = Refuses.NONE

    def __str__(self) -> str:
        return self.name


def release_first(store: OpenStore) -> None:
    store.log().release(1)


def change_something(store: OpenStore) -> None:
    store.store.record(("pause", "t", True), urgent=True)
    store.store.write_journal()


CASES = [
    Case("write of a log", ("write",), in_log, refuses=Refuses.ALL),
    Case("new segment", ("create",), in_log, refuses=Refuses.ALL),
    Case("sync of a log", ("sync",), in_log, refuses=Refuses.SYNCED),
    Case("sync of a topic's folder", ("sync folder",), lambda call: call.path.name == "t.t", refuses=Refuses.SYNCED),
    Case("truncate and write", ("truncate", "write"), in_log, refuses=Refuses.ALL),
    Case("everything that changes a log", ("create", "write", "truncate", "sync"), in_log, refuses=Refuses.ALL),
    Case("write of the journal", ("write",), in_journal, change_something),
    Case("sync of the journal", ("sync",), in_journal, change_something),
    Case("unlink", ("unlink",), in_log, release_first),
    Case("rename", ("rename",), provoke=lambda store: store.store.drop_log("other")),
    Case("topology", ("rename",), provoke=lambda store: store.store.topology.set_names({"n": 1})),
    Case("topology's write", ("create", "open"), provoke=lambda store: store.store.topology.set_names({})),
]


@asynccontextmanager
async def running(disk: SimulatedDisk, ack: Ack, **settings: Any) -> AsyncIterator[OpenStore]:
    opened = OpenStore(DATA_PATH, disk, ack=ack, max_bytes_per_file=SEGMENT, **settings)
    opened.clock.follows = trio.current_time
    opened.state_of = lambda name: [("topic", name)]
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(opened.run)
            yield opened
            nursery.cancel_scope.cancel()
    finally:
        opened.kill()


async def publish(store: OpenStore, body: bytes) -> str | None:
    receipt = store.publish(body)
    if not receipt.settled:
        event = trio.Event()
        receipt.when_settled(event.set)
        await event.wait()
    return receipt.error


@pytest.mark.parametrize("ack", [Ack.WRITTEN, Ack.SYNCED])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_told_and_heals(case: Case, ack: Ack) -> None:
    disk = SimulatedDisk()
    promised = [b"1", b"2", b"3"]

    async def test() -> None:
        async with running(disk, ack) as store:
            store.log("other")
            for body in promised:
                assert await publish(store, body) is None
            await store.store.sync("t")
            disk.fail(errno.EIO, *case.kinds, matches=case.matches)
            case.provoke(store)
            error = await publish(store, b"4")
            await trio.sleep(BEFORE_A_RETRY)
            assert store.store.health.startswith("NOK - ")
            assert store.store.health.endswith(": input/output error")
            if case.refuses is Refuses.ALL or (case.refuses is Refuses.SYNCED and ack is Ack.SYNCED):
                assert error is not None
            if error is None and case.refuses is not Refuses.SYNCED:  # a failed sync may have lost the message
                promised.append(b"4")
            await trio.sleep(TROUBLE)
            assert set(promised) - {b"1"} <= set(store.read().values())
            disk.heal()
            await trio.sleep(HEALING)
            assert store.store.health == "OK"
            assert await publish(store, b"5") is None
            promised.append(b"5")
            await store.store.sync("t")

    run_with_threads(test)
    disk.crash(Crash.FORGETS_ALL, disk.random)
    store = OpenStore(DATA_PATH, disk)
    found = list(store.read().values())
    store.kill()
    lasting = [body for body in promised if body != b"1" or case.provoke is not release_first]
    assert [body for body in found if body in promised] == lasting


async def read_first(store: OpenStore, most: float) -> tuple[bool, float]:
    """Read again whenever something was loaded, as a channel does.

    Return whether the message was there, and after how many seconds.
    """
    started = trio.current_time()
    while store.log().end_of_refused(0) == 0 and trio.current_time() - started < most:
        if store.log().batch_at(0) is not None:
            return True, trio.current_time() - started
        await trio.sleep(0.1)
    return False, trio.current_time() - started


def test_read_that_fails_for_a_moment_costs_nothing() -> None:
    disk = SimulatedDisk()

    async def test() -> None:
        async with running(disk, Ack.WRITTEN, mem_queue_size=0) as store:
            store.publish(b"1")
            store.publish(b"2")
            disk.fail(errno.EIO, "read", "read cached", matches=in_log)
            assert store.log().batch_at(0) is None
            await trio.sleep(1.5)
            assert store.log().batch_at(0) is None
            disk.heal()
            found, seconds = await read_first(store, 10.0)
            assert found
            assert seconds < 2.0
            assert store.store.damage == []

    run_with_threads(test)


def test_read_that_goes_on_failing_holds_up_nobody_and_costs_nothing() -> None:
    disk = SimulatedDisk()

    async def test() -> None:
        async with running(disk, Ack.WRITTEN, mem_queue_size=0) as store:
            store.publish(b"1")
            store.publish(b"2")
            disk.fail(errno.EIO, "read", "read cached", matches=in_log)
            found, seconds = await read_first(store, 60.0)
            assert not found
            assert READ_PATIENCE <= seconds < READ_PATIENCE + 1.0
            assert store.store.health.startswith("NOK - read ")
            assert store.log().end_of_refused(0) == 1
            assert (store.store.damage, store.log().next_readable(0)) == ([], 0)
            disk.heal()
            await trio.sleep(HEALING)
            assert store.store.health == "OK"
            found, _ = await read_first(store, 1.0)
            assert found
            assert not [path for path in disk.paths() if "damaged" in path.name]

    run_with_threads(test)
