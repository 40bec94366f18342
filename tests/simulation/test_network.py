"""Clients and nodes with a bad network between them. The long one: `python -m tests.simulation network --minutes 30`."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from random import Random

import pytest
import trio

from tests.simulation.behind import run_load
from tests.simulation.network import Fault, Link, each_once, storm
from tests.soak.ledger import Ledger
from tests.support.process import Nsqadmin, Nsqd, Nsqlookupd, needs_module

pytestmark = pytest.mark.slow

Say = Callable[[str], None]

PATIENCE = 60.0  # seconds; registrations need 15, as nsqd pings a silent peer after that time


@asynccontextmanager
async def links_to(*targets: tuple[str, int], seed: int = 0) -> AsyncIterator[Sequence[Link]]:
    chance = Random(seed)
    links = [Link(target, chance) for target in targets]
    async with trio.open_nursery() as nursery:
        for link in links:
            await nursery.start(link.serve)
        yield links
        nursery.cancel_scope.cancel()


# The network itself


@pytest.mark.parametrize("fault", Fault)
def test_what_passes_is_whole_and_in_order(fault: Fault) -> None:
    """An echo returns a beginning of what was sent, and all of it if no connection was broken."""
    sent = bytes(range(256)) * 4000

    async def main() -> bytes:
        async with trio.open_nursery() as nursery:
            echo = await nursery.start(trio.serve_tcp, _echo, 0)
            port = echo[0].socket.getsockname()[1]
            async with links_to(("127.0.0.1", port)) as (link,):
                received = await _echoed(link, sent, fault)
            nursery.cancel_scope.cancel()
        return received

    received = trio.run(main)
    assert received == sent[: len(received)]
    if fault in (Fault.STALL, Fault.DELAY, Fault.DRIP, Fault.BLACK_HOLE):
        assert received == sent
    else:
        assert received != sent


async def _echo(stream: trio.SocketStream) -> None:
    try:
        async for data in stream:
            await stream.send_all(data)
    except trio.BrokenResourceError:
        pass


async def _echoed(link: Link, sent: bytes, fault: Fault) -> bytes:
    received = bytearray()
    with trio.fail_after(PATIENCE):
        async with await trio.open_tcp_stream(*link.address) as stream, trio.open_nursery() as nursery:
            nursery.start_soon(_send, stream, sent)
            try:
                while len(received) < len(sent) and (data := await stream.receive_some(65536)):
                    received += data
                    if link.fault is None and len(received) < len(sent) / 2:
                        link.begin(fault)
                        nursery.start_soon(_heal_soon, link)
            except trio.BrokenResourceError:
                pass
            nursery.cancel_scope.cancel()
    return bytes(received)


async def _send(stream: trio.SocketStream, sent: bytes) -> None:
    try:
        await stream.send_all(sent)
    except trio.BrokenResourceError:
        pass


async def _heal_soon(link: Link) -> None:
    await trio.sleep(0.1)
    link.heal()


# nsqd behind it


def test_nothing_is_lost_on_a_bad_network(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    told: list[str] = []
    ledger = Ledger()
    try:
        with Nsqd(tmp_path / "data") as node:
            trio.run(load_on_a_bad_network, node, ledger, seed, told.append)
    except Exception as error:
        error.add_note(f"seed {seed}\n" + "\n".join(told))
        raise
    assert len(told) == len(Fault)
    print(f"seed {seed}: {dict(ledger.counts)}, latest {ledger.latest:.1f} s")


async def load_on_a_bad_network(node: Nsqd, ledger: Ledger, seed: int, say: Say) -> None:
    chance = Random(seed)
    async with links_to(node.tcp, seed=seed) as links:

        async def recovered() -> None:
            goals = {what: ledger.counts[what] + 50 for what in ("published", "delivered")}
            with trio.fail_after(PATIENCE):
                while any(ledger.counts[what] < goal for what, goal in goals.items()):  # noqa: ASYNC110 -- counts go up
                    await trio.sleep(0.01)

        async def disturb() -> None:
            await recovered()
            await each_once(links[0], ledger, chance, longest=1.5, say=say, recovered=recovered)

        await run_load(node, links[0].address, ledger, chance, disturb)


# nsqlookupd behind it


def test_registrations_come_back_when_the_network_heals(tmp_path: Path) -> None:
    """One nsqd has an nsqlookupd for each fault. All are disturbed at once, and a topic is made meanwhile."""
    with ExitStack() as stack:
        lookupds = [stack.enter_context(Nsqlookupd()) for _ in Fault]
        trio.run(_registrations, tmp_path, lookupds)


async def _registrations(folder: Path, lookupds: Sequence[Nsqlookupd]) -> None:
    async with links_to(*(it.tcp for it in lookupds)) as links:
        options = [f"lookupd-tcp-address=127.0.0.1:{link.address[1]}" for link in links]
        node = Nsqd(folder, "broadcast-address=127.0.0.1", *options)
        try:
            await trio.to_thread.run_sync(node.start)
            await trio.to_thread.run_sync(node.post, "/topic/create?topic=before")
            await _registered(lookupds, "before", PATIENCE)
            for fault, link in zip(Fault, links, strict=True):
                link.begin(fault)
            await trio.to_thread.run_sync(node.post, "/topic/create?topic=meanwhile")
            await trio.sleep(3.0)
            for link in links:
                link.heal()
            healed = trio.current_time()
            for topic in ("before", "meanwhile"):
                await _registered(lookupds, topic, PATIENCE)
            print(f"everything registered {trio.current_time() - healed:.1f} s after the network had healed")
        finally:
            node.kill()


async def _registered(lookupds: Sequence[Nsqlookupd], topic: str, limit: float) -> None:
    missing = dict(zip(Fault, lookupds, strict=True))
    with trio.move_on_after(limit):
        while missing:
            for fault, lookupd in list(missing.items()):
                if await trio.to_thread.run_sync(lookupd.producers, topic):
                    del missing[fault]
            await trio.sleep(0.1)
    assert not missing, f"{topic} is not at the nsqlookupd behind {', '.join(missing)}"


# nsqadmin behind it


@pytest.mark.parametrize("fault", [Fault.STALL, Fault.RESET, Fault.DRIP])
def test_nsqadmin_answers_and_shows_who_is_silent(tmp_path: Path, fault: Fault) -> None:
    needs_module("starlette")
    with Nsqlookupd() as lookupd:
        options = "broadcast-address=127.0.0.1", f"lookupd-tcp-address=127.0.0.1:{lookupd.tcp[1]}"
        with Nsqd(tmp_path / "near", *options):
            trio.run(_admin, lookupd, tmp_path / "far", options, fault)


async def _admin(lookupd: Nsqlookupd, folder: Path, options: Sequence[str], fault: Fault) -> None:
    async with links_to(("", 0)) as (link,):
        # nsqadmin asks a node at the address that it has registered.
        far = Nsqd(folder, *options, f"broadcast-http-port={link.address[1]}")
        place = f"lookupd-http-address=127.0.0.1:{lookupd.http_address[1]}"
        admin = Nsqadmin(place, "sample-interval=1s", "http-client-request-timeout=1s")
        try:
            await trio.to_thread.run_sync(far.start)
            link.target = far.http_address
            await trio.to_thread.run_sync(admin.start)
            await _unanswered(admin, 0)
            link.begin(fault)
            if fault in (Fault.STALL, Fault.RESET):
                await _unanswered(admin, 1)
            longest = 0.0
            for path in ("/ping", "/", "/nodes", "/api/nodes", "/api/topics", "/api/v2/health") * 3:
                began = time.monotonic()
                answer = await trio.to_thread.run_sync(admin.http, "GET", path)
                assert answer.status == 200, path
                longest = max(longest, time.monotonic() - began)
            print(f"{fault}: the slowest answer took {longest:.2f} s")
            assert longest < PATIENCE / 2  # a stalled node stays silent for all of this time
            link.heal()
            await _unanswered(admin, 0)
        finally:
            admin.kill()
            far.kill()


async def _unanswered(admin: Nsqadmin, count: int) -> None:
    """Wait until nsqadmin says that this many nodes have not answered."""
    said = None
    with trio.move_on_after(PATIENCE):
        while said is None or len(said) != count:
            health = await trio.to_thread.run_sync(admin.http, "GET", "/api/v2/health")
            said = health.json["unanswered"]
            await trio.sleep(0.1)
    assert said is not None
    assert len(said) == count, said


# Spark's reader behind it


def test_a_range_is_read_exactly_over_a_bad_network(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    seed = random.randrange(1 << 32)
    told: list[str] = []
    with Nsqd(tmp_path / "data", "retention-bytes=1GB") as node:
        numbers = trio.run(_read_over, node, seed, told)
    assert numbers == list(range(len(numbers))), f"seed {seed}\n" + "\n".join(told)
    assert len(numbers) == 30_000
    print(f"seed {seed}: read {len(numbers)} messages over {told}")


async def _read_over(node: Nsqd, seed: int, told: list[str]) -> list[int]:
    from pyspark_nsq.cluster import Cluster
    from pyspark_nsq.http import Http
    from pyspark_nsq.lanes import Range
    from pyspark_nsq.options import source_options
    from tests.support.spark import numbered, publish

    await trio.to_thread.run_sync(publish, node, "orders", numbered(30_000, size=1000))
    async with links_to(node.http_address, seed=seed) as links, trio.open_nursery() as nursery:
        link = links[0]
        options = source_options(
            {"nsqd": f"127.0.0.1:{link.address[1]}", "topic": "orders", "timeoutSeconds": "2"}
        )  # fmt: skip
        (head,) = (await trio.to_thread.run_sync(lambda: Cluster(options, Http(options.access)).heads())).values()
        range_ = Range(head.lane, head.address, 0, head.next)
        nursery.start_soon(_storm_alone, link, seed, told)
        with trio.fail_after(3 * PATIENCE):
            numbers = await trio.to_thread.run_sync(_read_slowly, range_, options)
        nursery.cancel_scope.cancel()
    return numbers


async def _storm_alone(link: Link, seed: int, told: list[str]) -> None:
    await storm([link], Ledger(), Random(seed), longest=0.5, say=told.append)


def _read_slowly(range_: object, options: object) -> list[int]:
    """Read in a thread, with a pause after each batch, so that the network has time to break some of them."""
    import pyarrow as pa

    from pyspark_nsq.source.reading import read_ranges
    from pyspark_nsq.source.rows import ALL_COLUMNS

    schema = pa.schema([(name, ALL_COLUMNS[name]) for name in ("sequence", "body")])
    numbers: list[int] = []
    for batch in read_ranges((range_,), options, schema):  # type: ignore[arg-type]  # imported where there is pyarrow
        assert batch["sequence"].to_pylist() == [int(body) for body in batch["body"].to_pylist()]
        numbers += batch["sequence"].to_pylist()
        time.sleep(0.2)
    return numbers
