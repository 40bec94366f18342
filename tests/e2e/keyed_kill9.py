"""nsqd is killed, or connections are cut at any byte, while nsqclient publishes and repeats by itself: each message is
stored once. Reminders that are cancelled and set again under the same key are stored once each time.

    python -m tests.e2e.keyed_kill9                 # 200 kills, with trio
    python -m tests.e2e.keyed_kill9 --cuts 200 --colour aio
"""

from __future__ import annotations

import asyncio
import random
import socket
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import trio

import nsqclient
from nsqclient import aio
from scripts.command_line import option, read_options
from tests.support.process import Nsqd, SteadyNsqd, eventually
from tests.support.stored import stored_bodies

TASKS: Final = 20
MOST: Final = 600  # messages before a kill; an idle machine takes 0.3 s for them
_PIECE: Final = 16 * 1024
_LONGEST: Final = 20_000  # bytes until a connection is cut: some hundred messages


class CuttingProxy:
    """Passes bytes on, and cuts each connection after a random number of them, `cuts` times in all.

    It can also withhold answers, so that a client does not learn what nsqd has stored before it is killed.
    """

    def __init__(self, target: tuple[str, int], chance: random.Random, cuts: int) -> None:
        self.done = 0
        self._target = target
        self._chance = chance
        self._cuts = cuts
        self._withholds = False
        self._withheld = 0  # answers, since `withhold_answers`
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def withhold_answers(self) -> None:
        """Pass no more answers on, and wait until there was one. Its connection gets none at all from then on."""
        self._withheld, self._withholds = 0, True
        eventually(lambda: self._withheld > 0, 120)

    def pass_answers(self) -> None:
        self._withholds = False

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(self._target)
                except OSError:  # nsqd is down
                    client.close()
                    continue
                left = self._chance.randrange(1, _LONGEST) if self.done < self._cuts else 1 << 60
                allowance = [left]
                for source, sink in ((client, server), (server, client)):
                    arguments = source, sink, allowance, source is server
                    threading.Thread(target=self._pass, args=arguments, daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, allowance: list[int], answers: bool) -> None:
        is_cut_off = False
        with source, suppress(OSError):  # each thread closes the socket that it reads from
            while data := source.recv(_PIECE):
                is_cut_off = is_cut_off or (answers and self._withholds)
                if is_cut_off:
                    self._withheld += 1
                    continue
                allowance[0] -= len(data)
                if allowance[0] <= 0:
                    self.done += 1
                    sink.sendall(data[: allowance[0]])  # a part of it arrives
                    break
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)


class Publishers:
    """Tasks that publish running numbers until they are told to stop, each in its own way."""

    def __init__(self, address: str, colour: str) -> None:
        self.published: list[bytes] = []  # those that were acknowledged
        self.failures: list[BaseException] = []
        self.cancelled: list[bytes] = []  # of these, those that were taken back, and are stored nonetheless
        self._address = address
        self._numbers = iter(range(1 << 60))
        self._stops = False
        self._thread = threading.Thread(target={"trio": self._trio, "aio": self._aio}[colour], daemon=True)
        self._thread.start()

    def go_on_for(self, count: int) -> None:
        """Wait until so many more messages were acknowledged, or something is wrong, which the end of the run shows."""
        goal = len(self.published) + count
        eventually(lambda: len(self.published) >= goal or self.failures, 120)

    def stop(self) -> None:
        self._stops = True
        self._thread.join(120)
        assert not self._thread.is_alive(), "publishing did not end"

    def _trio(self) -> None:
        trio.run(self._publish, nsqclient.open_producer, _in_trio)

    def _aio(self) -> None:
        asyncio.run(self._publish(aio.open_producer, _in_asyncio))

    async def _publish(self, open_producer: Any, together: Any) -> None:
        async with open_producer(self._address, retry_timeout=120) as producer:
            await together([lambda kind=kind: self._one(producer, kind) for kind in range(TASKS)])

    async def _one(self, producer: Any, kind: int) -> None:
        try:
            while not self._stops:
                bodies = [b"%d" % next(self._numbers) for _ in range(10 if kind % 4 == 0 else 1)]
                match kind % 4:
                    case 0:
                        await producer.publish_many("t", bodies)
                    case 1:
                        await producer.publish("t", bodies[0], delay=0.01)
                    case 2 if kind % 8 == 2:
                        bodies = await self._remind(producer, f"reminder-{kind}")
                    case _:
                        await producer.publish("t", bodies[0])
                self.published += bodies
        except (nsqclient.ConnectError, nsqclient.PublishUnsent):  # nsqd was down in all rounds: nothing is stored
            if not self._stops:
                await self._one(producer, kind)
        except Exception as error:
            self.failures.append(error)

    async def _remind(self, producer: Any, key: str) -> list[bytes]:
        """Set a reminder twice, so that the second time is a repeat, and cancel it. Return what has to be stored."""
        body = b"%d" % next(self._numbers)
        stored = await self._cancel(producer, key)  # a round that a lost connection has ended may have left one
        for again in (b"", b" again"):
            await producer.publish("t", body + again, key=key, delay=3000)
        stored += await self._cancel(producer, key)
        self.cancelled.append(body)
        return [body, *stored]

    async def _cancel(self, producer: Any, key: str) -> list[bytes]:
        """Take a reminder back. Return what was published meanwhile, as publishing waits until nsqd is there again."""
        published: list[bytes] = []
        while True:
            try:
                result = await producer.cancel("t", key)
            except nsqclient.Incomplete:
                published.append(b"%d" % next(self._numbers))
                await producer.publish("t", published[-1])
            else:
                assert not result.in_flight, result
                return published


async def _in_trio(tasks: list[Callable[[], Any]]) -> None:
    async with trio.open_nursery() as nursery:
        for task in tasks:
            nursery.start_soon(task)


async def _in_asyncio(tasks: list[Callable[[], Any]]) -> None:
    await asyncio.gather(*(task() for task in tasks))


def run(folder: Path, *, kills: int, cuts: int, seed: int, colour: str, tell: Callable[[str], object]) -> str:
    chance = random.Random(seed)
    with SteadyNsqd(folder, "retention-bytes=10GB", "max-bytes-per-file=1000000", "idempotence-window=1h") as nsqd:
        proxy = CuttingProxy(nsqd.tcp, chance, cuts)
        nsqd.post("/topic/create?topic=t")
        nsqd.post("/channel/create?topic=t&channel=c")
        publishers = Publishers(proxy.address, colour)
        try:
            for number in range(1, kills + 1):
                publishers.go_on_for(chance.randrange(MOST))
                if number % 2:  # otherwise chance decides whether something is stored and not acknowledged
                    proxy.withhold_answers()
                nsqd.kill()
                proxy.pass_answers()
                nsqd.start()
                if number % 20 == 0:
                    tell(f"{number} kills, {len(publishers.published):,} messages")
            eventually(lambda: proxy.done >= cuts, 60 + cuts)
        finally:
            publishers.stop()
            proxy.close()
        assert not publishers.failures, f"seed {seed}: {publishers.failures[:3]}"
        return _compared(nsqd, publishers, seed)


def _compared(nsqd: Nsqd, publishers: Publishers, seed: int) -> str:
    stored = Counter(stored_bodies(nsqd, "t"))
    lost = [body for body in publishers.published if body not in stored]
    doubled = [body for body, count in stored.items() if count > 1]
    again = [body for body in publishers.cancelled if body + b" again" in stored]
    assert not again, f"seed {seed}: repeats of reminders were stored: {again[:5]}, of {len(publishers.cancelled)}"
    delivered = nsqd.channel("t", "c")["deferred_count"]
    assert delivered <= 3, f"seed {seed}: {delivered} reminders are left, of {len(publishers.cancelled)} cancelled ones"
    repeats = nsqd.topic("t").get("repeat_count", 0)
    summary = f"{len(publishers.published):,} acknowledged, {len(lost)} lost, {len(doubled)} doubled"
    assert not lost, f"seed {seed}: {summary}: {lost[:5]}"
    assert not doubled, f"seed {seed}: {summary}: {doubled[:5]}"
    summary += f", {len(publishers.cancelled):,} reminders cancelled and set again"
    return f"{summary} ({repeats} second tries since the last start)"


@dataclass(frozen=True, kw_only=True)
class KeyedKill9Options:
    kills: int | None = option(None, "of nsqd (default: 200, or 0 with --cuts)")
    cuts: int = option(0, "of connections, each at a random byte")
    colour: str = option("trio", "of the client", choices=("trio", "aio"))
    seed: int = option(random.randrange(1 << 32), "where all chance comes from (default: a new one)")


def main() -> int:
    arguments = read_options(KeyedKill9Options, name="python -m tests.e2e.keyed_kill9", about=__doc__)
    kills = arguments.kills if arguments.kills is not None else 0 if arguments.cuts else 200

    def tell(text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    tell(f"seed {arguments.seed}")
    with tempfile.TemporaryDirectory() as folder:
        tell(
            run(Path(folder), kills=kills, cuts=arguments.cuts, seed=arguments.seed, colour=arguments.colour, tell=tell)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
