"""Counts the messages that are lost with a machine under load; deploy/demo/lose-a-machine loses it.

    lose_machine.py --lookupd 127.0.0.1:4161 ... --lose 10.213.4.21

publishes keyed messages to all nodes, repeats each until it has an OK, and consumes them. It says when the machine may be
lost, which node took over after how many seconds, and how many acknowledged messages are missing or came twice. The exit
status is 1 if a message is missing, or if no other node has taken over in time.
"""

from __future__ import annotations

import json
import logging
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.request import urlopen

import trio

import nsqclient
from nsqcommon.options import STRING, STRINGS, option
from nsqcommon.subcommands import Command, required, run_command

TOPIC = "losses"
CHANNEL = "check"
MOST_WAITING = 200  # publishes
TIMEOUT = 5.0  # seconds for one request
LOOK = 0.1  # seconds between two looks
PATIENCE = 120.0  # seconds


class Failed(Exception):
    """What the person in front of the terminal should know; the demo ends."""


class Load:
    """Message 7 has the body b"7" and the key "7"."""

    def __init__(self, rate: float) -> None:
        self.acknowledged: set[int] = set()
        self.came: Counter[int] = Counter()
        self._rate = rate
        self._stop = trio.Event()

    async def publish(self, lookupds: Sequence[str]) -> None:
        """Publish until `stop` is called, and return when each message has its OK."""
        room = trio.Semaphore(MOST_WAITING)
        producing = nsqclient.open_producer(lookupd=lookupds, strategy="round_robin", retry="unsent", retry_timeout=2)
        async with producing as producer, trio.open_nursery() as nursery:
            began, number = trio.current_time(), 0
            while not self._stop.is_set():
                await room.acquire()
                nursery.start_soon(self._publish, producer, number, room)
                number += 1
                with trio.move_on_at(began + number / self._rate):
                    await self._stop.wait()

    async def _publish(self, producer: nsqclient.Producer, number: int, room: trio.Semaphore) -> None:
        while number not in self.acknowledged:
            try:
                await producer.publish(TOPIC, b"%d" % number, key=str(number), timeout=TIMEOUT)
            except (nsqclient.NSQError, TimeoutError, trio.TooSlowError):
                await trio.sleep(LOOK)  # the key makes it safe to repeat
            else:
                self.acknowledged.add(number)
        room.release()

    def stop(self) -> None:
        self._stop.set()

    async def consume(self, lookupds: Sequence[str]) -> None:
        config = nsqclient.Config(max_in_flight=1000, lookupd_poll_interval=1)
        async with nsqclient.open_consumer(TOPIC, CHANNEL, lookupd=lookupds, config=config) as consumer:
            async for message in consumer:
                self.came[int(message.body)] += 1
                message.finish()

    @property
    def missing(self) -> set[int]:
        return self.acknowledged - self.came.keys()


async def get(url: str) -> bytes | None:
    """Return the body of the answer, or None if there is none."""

    def ask() -> bytes:
        with urlopen(url, timeout=TIMEOUT) as answer:
            body: bytes = answer.read()
            return body

    try:
        return await trio.to_thread.run_sync(ask, abandon_on_cancel=True)
    except OSError:
        return None


async def nodes(lookupd: str) -> Mapping[str, str]:
    """Return the HTTP address of each node by its TCP address."""
    answer = await get(f"http://{lookupd}/nodes")
    listed: list[dict[str, Any]] = json.loads(answer)["producers"] if answer is not None else []
    return {
        f"{it['broadcast_address']}:{it['tcp_port']}": f"{it['broadcast_address']}:{it['http_port']}" for it in listed
    }


async def wait_for(what: str, found: Callable[[], Awaitable[Any]]) -> Any:
    """Return what `found` returns as soon as that is true. Raise Failed if that takes too long."""
    with trio.move_on_after(PATIENCE):
        while True:
            if result := await found():
                return result
            await trio.sleep(LOOK)
    raise Failed(f"{PATIENCE:.0f} s without {what}")


async def lose(lookupds: Sequence[str], host: str, number: int, rate: float, seconds: float) -> int:
    load = Load(rate)

    async def known() -> Mapping[str, str] | None:
        listed = await nodes(lookupds[0])
        return listed if len(listed) >= number else None

    async def gone() -> bool:
        return await get(f"http://{lost}/ping") is None

    async def successor() -> str | None:
        return next((it for it in await nodes(lookupds[0]) if it not in before), None)

    async def complete() -> bool:
        return not load.missing

    before = await wait_for(f"{number} nodes", known)
    lost = next((http for tcp, http in before.items() if tcp.startswith(f"{host}:")), "")
    if not lost:
        raise Failed(f"{host} is none of {', '.join(before)}")
    async with trio.open_nursery() as everything:
        everything.start_soon(load.consume, lookupds)
        async with trio.open_nursery() as publishing:
            publishing.start_soon(load.publish, lookupds)
            await trio.sleep(seconds)
            print(f"publishing {rate:,.0f} messages a second to {', '.join(sorted(before))}")
            print(f"{lost} has its share of {len(load.acknowledged):,} messages: lose it now", flush=True)
            await wait_for(f"an end of {lost}", gone)
            at = trio.current_time()
            print(f"{lost} is gone", flush=True)
            new = await wait_for("another node", successor)
            print(f"{new} took over after {trio.current_time() - at:.1f} s", flush=True)
            await trio.sleep(seconds)
            load.stop()
        with suppress(Failed):
            await wait_for("the rest", complete)
        everything.cancel_scope.cancel()
    twice = sum(count > 1 for count in load.came.values())
    print(
        f"of {len(load.acknowledged):,} acknowledged messages {len(load.missing):,} are missing, {twice:,} came twice"
    )
    return 1 if load.missing else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    lookupd: tuple[str, ...] = required("HOST:PORT of an nsqlookupd", kind=STRINGS)
    lose: str = required("the node whose machine will be lost", kind=STRING)
    nodes: int = option(3, "how many to wait for")
    rate: float = option(2000.0, "messages a second")
    seconds: float = option(5.0, "of load before and after")


def run(asked: Options) -> int:
    logging.disable(logging.CRITICAL)  # that connections break is what this is about
    try:
        return trio.run(lose, asked.lookupd, asked.lose, asked.nodes, asked.rate, asked.seconds)
    except* Failed as failed:
        sys.exit("; ".join(map(str, failed.exceptions)))


def main() -> int:
    return run_command(Command(table=Options, run=run, about=__doc__ or ""), sys.argv[1:], "lose_machine.py")


if __name__ == "__main__":
    sys.exit(main())
