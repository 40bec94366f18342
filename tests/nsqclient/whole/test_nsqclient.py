"""Our client library and a real nsqd: on trio, on asyncio, in scripts, and in users' tests."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any

import pytest
import trio
import trio_asyncio

import nsqclient
import nsqclient.sync
from nsqclient import (
    Config,
    ConnectError,
    GiveUp,
    Message,
    NSQError,
    Requeue,
    aio,
    events,
    open_consumer,
    open_producer,
)
from nsqcommon.wire.frames import OK_FRAME
from tests.support.auth_server import EVERYTHING, AuthServer, granting
from tests.support.brokers import StartNsqd
from tests.support.buried import buried_on_disk
from tests.support.certificates import make_certificates
from tests.support.http_server import Reply
from tests.support.process import Nsqd, Nsqlookupd, SteadyNsqd, eventually

LIMIT = 60.0  # seconds for a test
BIG = 1 << 20  # the largest message that nsqd accepts
COMPRESSIONS = "none", "snappy", "deflate"


def in_trio(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        with trio.fail_after(LIMIT):
            await test()

    trio.run(limited)


def in_asyncio(test: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(asyncio.wait_for(test(), LIMIT))


def in_asyncio_run(test: Callable[[], Awaitable[None]]) -> None:
    """Run the test in asyncio.run, whose loop trio-asyncio provides once it is imported."""
    asyncio.run(asyncio.wait_for(test(), LIMIT))


def in_trio_asyncio(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        with trio.fail_after(LIMIT):
            async with trio_asyncio.open_loop():
                await trio_asyncio.aio_as_trio(test)()

    trio.run(limited)


LOOPS: dict[str, tuple[Any, Callable[[Callable[[], Awaitable[None]]], None]]] = {
    "trio": (nsqclient, in_trio),
    "asyncio": (aio, in_asyncio),
    "asyncio.run": (aio, in_asyncio_run),
    "trio-asyncio": (aio, in_trio_asyncio),
}
on_each_loop = pytest.mark.parametrize(("library", "run"), LOOPS.values(), ids=LOOPS)
Run = Callable[[Callable[[], Awaitable[None]]], None]


def address_of(nsqd: Nsqd) -> str:
    return f"{nsqd.tcp[0]}:{nsqd.tcp[1]}"


# Both loops


@on_each_loop
def test_there_and_back(nsqd: Nsqd, topic: str, library: Any, run: Run) -> None:
    async def test() -> None:
        async with library.open_producer(address_of(nsqd)) as producer:
            await producer.publish(topic, b"one")
            await producer.publish_many(topic, [b"two", b"three"])
            await producer.publish(topic, b"later", delay=0.2)
            receipt = await producer.submit(topic, b"four")
            assert (await receipt.wait()).error is None
            with pytest.raises(nsqclient.PublishRejected, match="E_BAD_MESSAGE PUB message too big"):
                await producer.publish(topic, b"x" * (BIG + 1))
            await producer.publish(topic, b"after")
            assert producer.stats().published == 6
        got: list[bytes] = []
        config = Config(max_in_flight=10)
        async with library.open_consumer(topic, "c", nsqd=address_of(nsqd), config=config) as consumer:

            async def handle(message: Message) -> None:
                if message.body == b"two" and message.attempts == 1:
                    raise Requeue(0.1, backoff=False)
                got.append(message.body)
                if len(got) == 6:
                    consumer.stop()

            await consumer.run(handle, concurrency=3)
        assert sorted(got) == sorted([b"one", b"two", b"three", b"later", b"four", b"after"])
        stats = consumer.stats()
        assert (stats.received, stats.finished, stats.requeued) == (7, 6, 1)

    run(test)
    channel = nsqd.channel(topic)
    assert (channel["depth"], channel["in_flight_count"], channel["deferred_count"]) == (0, 0, 0)


@on_each_loop
def test_iteration_and_what_is_left_comes_to_others_at_once(nsqd: Nsqd, topic: str, library: Any, run: Run) -> None:
    async def test() -> None:
        async with library.open_producer(address_of(nsqd)) as producer:
            await producer.publish_many(topic, [b"%d" % number for number in range(20)])
        with pytest.raises(KeyError):
            async with library.open_consumer(topic, "c", nsqd=address_of(nsqd), config=Config(max_in_flight=20)) as it:
                async for message in it:
                    async with message:
                        if message.body == b"5":
                            raise KeyError

    run(test)
    channel = nsqd.channel(topic)
    assert channel["in_flight_count"] == 0
    assert channel["depth"] + channel["deferred_count"] == 15


@on_each_loop
def test_a_task_that_is_cancelled_gives_everything_back(nsqd: Nsqd, topic: str, library: Any, run: Run) -> None:
    nsqd.connect().publish(topic, b"one")

    async def consume() -> None:
        async with library.open_consumer(topic, "c", nsqd=address_of(nsqd)) as consumer:
            await consumer.run(stuck)

    async def stuck(message: Message) -> None:
        busy.append(message)
        await (await trio.sleep_forever() if library is nsqclient else asyncio.sleep(1000))

    async def test() -> None:
        if library is nsqclient:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(consume)
                while not busy:  # noqa: ASYNC110
                    await trio.sleep(0.01)
                nursery.cancel_scope.cancel()
        else:
            task = asyncio.create_task(consume())
            while not busy:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert len(asyncio.all_tasks()) <= 2  # this task and the one of the limit

    busy: list[Message] = []
    run(test)
    channel = nsqd.channel(topic)
    assert (channel["depth"], channel["in_flight_count"]) == (1, 0)


def streams() -> list[Any]:
    """Return each stream on trio, and on one of asyncio's loops in turn: each of these has TLS once, and plain text once."""
    others = [name for name in LOOPS if name != "trio"]
    return [
        pytest.param(*LOOPS[loop], tls, compression, id=f"{loop}-{tls}-{compression}")
        for turn, (tls, compression) in enumerate(product(("off", "require"), COMPRESSIONS))
        for loop in ("trio", others[(turn + turn // len(COMPRESSIONS)) % len(others)])
    ]


@pytest.mark.parametrize(("library", "run", "tls", "compression"), streams())
def test_every_stream_carries_the_largest_messages(
    secured: tuple[Nsqd, ssl.SSLContext], topic: str, library: Any, run: Run, tls: Any, compression: Any
) -> None:
    nsqd, context = secured
    seed = random.randrange(1 << 32)
    noise = random.Random(seed)
    bodies = [noise.randbytes(BIG), b"a" * BIG, noise.randbytes(10)]
    config = Config(compression=compression, tls=tls, ssl_context=context, max_in_flight=3)

    async def test() -> None:
        async with library.open_producer(address_of(nsqd), config=config) as producer:
            for body in bodies:
                await producer.publish(topic, body)
        got = []
        async with library.open_consumer(topic, "c", nsqd=address_of(nsqd), config=config) as consumer:
            async for message in consumer:
                got.append(message.body)
                message.finish()
                if len(got) == len(bodies):
                    client = nsqd.channel(topic)["clients"][0]
                    shown = (client["tls"], client["snappy"], client["deflate"])
                    assert shown == (tls == "require", compression == "snappy", compression == "deflate")
                    consumer.stop()
        assert sorted(got) == sorted(bodies)

    run(test)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("secured")
    made = make_certificates(folder)
    with Nsqd(folder / "data", f"tls-cert={made.certificate}", f"tls-key={made.key}") as nsqd:
        yield nsqd, ssl.create_default_context(cafile=str(made.authority))


@on_each_loop
def test_a_certificate_that_nobody_vouches_for(
    secured: tuple[Nsqd, ssl.SSLContext], library: Any, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", os.devnull)  # reading all authorities of the system takes 0.1 s

    async def test() -> None:
        async with library.open_producer(address_of(secured[0]), config=Config(tls="require")) as producer:
            with pytest.raises(nsqclient.TLSRefused):
                await producer.publish("t", b"one")

    run(test)


@on_each_loop
def test_the_http_port_by_mistake(nsqd: Nsqd, library: Any, run: Run) -> None:
    async def test() -> None:
        async with library.open_producer("{}:{}".format(*nsqd.http_address)) as producer:
            with pytest.raises(ConnectError, match="unexpected HTTP response, a nsqd TCP endpoint is required"):
                await producer.publish("t", b"one")

    run(test)


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[str], list[Nsqd]]]:
    """Yield the addresses of two nsqlookupds, one of which is down, and two nsqds."""
    folder = tmp_path_factory.mktemp("listed")
    with Nsqlookupd() as lookupd, Nsqlookupd() as dead:
        flags = f"lookupd-tcp-address=127.0.0.1:{lookupd.tcp[1]}", "broadcast-address=127.0.0.1"
        lookupds = [f"127.0.0.1:{it.http_address[1]}" for it in (dead, lookupd)]
        dead.kill()
        with Nsqd(folder / "a", *flags) as first, Nsqd(folder / "b", *flags) as second:
            yield lookupds, [first, second]


@on_each_loop
def test_nsqds_are_found_as_soon_as_they_are_there(
    listed: tuple[list[str], list[Nsqd]], topic: str, library: Any, run: Run
) -> None:
    """The consumer uses /lookup with wait=; another nsqlookupd is down."""
    lookupds, nsqds = listed

    async def test() -> None:
        config = Config(max_in_flight=2)
        async with library.open_consumer(topic, "c", lookupd=lookupds, config=config) as consumer:
            for nsqd in nsqds:  # nobody knows the topic yet
                async with library.open_producer(address_of(nsqd)) as producer:
                    await producer.publish(topic, b"one")
                (await anext(consumer)).finish()
            assert len(consumer.stats().connections) == 2

    run(test)


@on_each_loop
def test_an_nsqd_that_comes_back_is_found_again(tmp_path: Path, library: Any, run: Run) -> None:
    with Nsqlookupd() as lookupd:
        nsqd = Nsqd(tmp_path / "a", f"lookupd-tcp-address=127.0.0.1:{lookupd.tcp[1]}", "broadcast-address=127.0.0.1")
        with nsqd:
            nsqd.connect().publish("found", b"one")

            async def test() -> None:
                lookupds = [f"http://127.0.0.1:{lookupd.http_address[1]}/"]
                async with library.open_consumer("found", "c", lookupd=lookupds, startup="require") as consumer:
                    (await anext(consumer)).finish()
                    nsqd.kill()
                    nsqd.start()  # on another port
                    nsqd.connect().publish("found", b"two")
                    message = await anext(consumer)
                    while message.body == b"one":  # a kill may lose its FIN
                        message.finish()
                        message = await anext(consumer)
                    assert message.body == b"two"
                    message.finish()

            run(test)


@on_each_loop
@pytest.mark.slow
def test_an_nsqd_that_hangs_is_left_and_found_again_when_it_goes_on(tmp_path: Path, library: Any, run: Run) -> None:
    config = Config(
        max_in_flight=10,
        heartbeat_interval=1.0,
        read_timeout=4.0,
        reconnect_delay="fixed",
        lookupd_poll_interval=0.1,
    )
    sleep = trio.sleep if library is nsqclient else asyncio.sleep
    with Nsqd(tmp_path / "a") as first, Nsqd(tmp_path / "b") as second:

        async def test() -> None:
            def shares() -> dict[str, int]:
                return {it.address: it.rdy for it in consumer.stats().connections}

            async def receive(nsqd: Nsqd, body: bytes) -> None:
                nsqd.connect().publish("t", body)
                message = await anext(consumer)
                assert message.body == body
                message.finish()

            addresses = [address_of(first), address_of(second)]
            async with library.open_consumer("t", "c", nsqd=addresses, config=config) as consumer:
                while shares() != dict.fromkeys(addresses, 5):
                    await sleep(0.05)
                await receive(first, b"before")
                first.send_signal(signal.SIGSTOP)
                await receive(second, b"meanwhile")
                while shares() != {address_of(second): 10}:
                    await sleep(0.05)
                await receive(second, b"alone")
                first.send_signal(signal.SIGCONT)
                while shares() != dict.fromkeys(addresses, 5):
                    await sleep(0.05)
                await receive(first, b"again")

        try:
            run(test)
        finally:
            first.send_signal(signal.SIGCONT)


@on_each_loop
def test_an_nsqd_that_reads_nothing_more_is_given_up(library: Any, run: Run) -> None:
    def shake_hands() -> None:
        connection, _ = listener.accept()
        accepted.append(connection)
        said = b""
        while not said.endswith(b"}") and (more := connection.recv(65536)):
            said += more
        connection.sendall(OK_FRAME)

    async def test() -> None:
        config = Config(write_timeout=0.5)
        async with library.open_producer(f"127.0.0.1:{listener.getsockname()[1]}", config=config) as producer:
            receipts = [await producer.submit("t", bytes(BIG)) for _ in range(8)]  # more than the kernel buffers
            for receipt in receipts:
                await receipt.wait()
                assert str(receipt.error) == "not connected: IO error - write: i/o timeout"

    accepted: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.settimeout(LIMIT)
        peer = threading.Thread(target=shake_hands)
        peer.start()
        try:
            run(test)
        finally:
            peer.join()
            for connection in accepted:
                connection.close()


@on_each_loop
def test_a_plain_function_answers_from_its_thread(nsqd: Nsqd, topic: str, library: Any, run: Run) -> None:
    nsqd.connect().publish(topic, b"one")
    threads = []

    async def test() -> None:
        async with library.open_consumer(topic, "c", nsqd=address_of(nsqd)) as consumer:

            def handle(message: Message) -> None:
                threads.append(threading.current_thread())
                assert message.touch()
                assert message.finish()
                stop.set()

            if library is nsqclient:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(consumer.run, handle)
                    await trio.to_thread.run_sync(stop.wait)
                    consumer.stop()
            else:
                task = asyncio.create_task(consumer.run(handle))
                await asyncio.to_thread(stop.wait)
                consumer.stop()
                await task

    stop = threading.Event()
    run(test)
    assert threads[0] is not threading.main_thread()
    assert nsqd.channel(topic)["depth"] == 0


@on_each_loop
def test_a_plain_function_may_leave_the_answer_to_others(nsqd: Nsqd, topic: str, library: Any, run: Run) -> None:
    second = threading.Event()

    def handle(message: Message) -> None:
        message.disable_auto_response()
        if message.body == b"two":  # the first has been handled completely
            second.set()

    async def test() -> None:
        async with library.open_producer(address_of(nsqd)) as producer:
            await producer.publish_many(topic, [b"one", b"two"])
        config = Config(max_in_flight=2, drain_timeout=0.1)
        async with library.open_consumer(topic, "c", nsqd=address_of(nsqd), config=config) as consumer:
            if library is nsqclient:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(consumer.run, handle)
                    await trio.to_thread.run_sync(second.wait)
                    consumer.stop()
            else:
                task = asyncio.create_task(consumer.run(handle))
                await asyncio.to_thread(second.wait)
                consumer.stop()
                await task
            assert consumer.stats().finished == 0

    run(test)
    eventually(lambda: nsqd.channel(topic)["depth"] == 2)


def test_on_asyncio_a_task_that_breaks_ends_the_consumer(nsqd: Nsqd) -> None:
    def resolve(address: str) -> str:
        raise ZeroDivisionError

    async def test() -> None:
        async with aio.open_consumer("t", "c", nsqd=address_of(nsqd), resolve=resolve) as consumer:
            with pytest.raises(ZeroDivisionError):
                await anext(consumer)

    in_asyncio(test)


def test_on_asyncio_a_drain_does_not_wait_for_ever(nsqd: Nsqd, topic: str) -> None:
    async def never(message: aio.Message) -> None:
        consumer.stop()
        await asyncio.sleep(LIMIT)

    consumer: aio.Consumer

    async def test() -> None:
        nonlocal consumer
        async with aio.open_producer(address_of(nsqd)) as producer:
            await producer.publish(topic, b"one")
        config = Config(drain_timeout=0.1)
        async with aio.open_consumer(topic, "c", nsqd=address_of(nsqd), config=config) as consumer:
            await consumer.run(never)

    in_asyncio(test)
    eventually(lambda: (it := nsqd.channel(topic)) and (it["depth"], it["in_flight_count"]) == (1, 0))


@on_each_loop
def test_leaving_a_producer_whose_nsqd_hangs_tells_the_receipt(nsqd: Nsqd, topic: str, library: Any, run: Run) -> None:
    async def test() -> None:
        async with library.open_producer(
            address_of(nsqd), config=Config(drain_timeout=0.1), connect="require"
        ) as producer:
            nsqd.send_signal(signal.SIGSTOP)
            receipt = await producer.submit(topic, b"one")
        assert isinstance(receipt.error, nsqclient.PublishUnknown)

    try:
        run(test)
    finally:
        nsqd.send_signal(signal.SIGCONT)


@on_each_loop
def test_dead_letters(nsqd: Nsqd, topic: str, library: Any, run: Run) -> None:
    nsqd.connect().publish(topic, b"bad")

    async def fails(message: Message) -> None:
        raise RuntimeError("no")

    async def test() -> None:
        config = Config(max_attempts=2, default_requeue_delay=0.01, backoff="none")
        dead = f"{topic[:50]}.dead"
        async with library.open_consumer(
            topic, "c", nsqd=address_of(nsqd), config=config, dead_letter=dead
        ) as consumer:
            await handle_until(library, consumer, fails, lambda: is_buried(dead))

    def is_buried(dead: str) -> bool:
        found = nsqd.topic(dead)
        return found is not None and found["message_count"] == 1

    run(test)
    assert nsqd.channel(topic)["in_flight_count"] == 0


def reasons_on_disk(nsqd: Nsqd, topic: str) -> list[tuple[str, int]]:
    """Return reason and attempts of what is buried."""
    return [(it.note.reason, it.attempts) for it in buried_on_disk(nsqd.data_path, topic)]


@on_each_loop
@pytest.mark.parametrize("in_thread", [False, True], ids=["async", "thread"])
def test_a_handler_buries_gives_up_and_has_attempts_that_do_not_count(
    nsqd: Nsqd, topic: str, library: Any, run: Run, in_thread: bool
) -> None:
    nsqd.connect().publish(topic, b"bury", b"give up", b"busy", b"fine")
    seen: list[tuple[bytes, int]] = []

    def answer(message: Message) -> None:
        seen.append((message.body, message.attempts))
        if message.body == b"bury":
            assert message.bury("no such\norder: ü")
            assert message.answered == "buried"
        elif message.body == b"give up":
            raise GiveUp("no JSON")
        elif message.body == b"busy" and seen.count((b"busy", 1)) == 1:
            raise Requeue(0.05, backoff=False, count=False)

    async def answer_in_loop(message: Message) -> None:
        answer(message)

    async def test() -> None:
        config = Config(max_in_flight=10, compression="snappy" if in_thread else "none")
        async with library.open_consumer(topic, "c", nsqd=address_of(nsqd), config=config) as consumer:
            handler = answer if in_thread else answer_in_loop
            await handle_until(
                library, consumer, handler, lambda: consumer.stats().finished == 2 and consumer.stats().buried == 2
            )

    run(test)
    assert sorted(seen) == [(b"bury", 1), (b"busy", 1), (b"busy", 1), (b"fine", 1), (b"give up", 1)]
    assert reasons_on_disk(nsqd, topic) == [("no such order: ü", 1), ("no JSON", 1)]
    channel = nsqd.channel(topic)
    assert (channel["depth"], channel["in_flight_count"], channel["deferred_count"]) == (0, 0, 0)


async def handle_until(library: Any, consumer: Any, handler: Any, is_done: Callable[[], bool]) -> None:
    """Have the consumer's messages handled until it is done, then stop it."""

    pause = trio.sleep if library is nsqclient else asyncio.sleep

    async def stop_when_done() -> None:
        while not is_done():  # nsqd gives no event to wait for
            await pause(0.01)
        consumer.stop()

    if library is nsqclient:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run, handler)
            nursery.start_soon(stop_when_done)
    else:
        await asyncio.gather(consumer.run(handler), stop_when_done())


@on_each_loop
def test_what_always_fails_is_buried_in_the_end(nsqd: Nsqd, topic: str, library: Any, run: Run) -> None:
    bodies = [b"%d" % number for number in range(20)]
    nsqd.connect().publish(topic, *bodies)

    async def fails(message: Message) -> None:
        assert message.attempts <= 3
        if message.body == b"0":
            message.requeue(0, backoff=False)
        elif message.body == b"1":
            raise Requeue(0, backoff=False)
        elif message.body == b"2":
            raise Requeue(0) from KeyError("order")
        else:
            raise ValueError(f"no {message.attempts}")

    async def test() -> None:
        config = Config(max_attempts=3, max_in_flight=5, default_requeue_delay=0.01, backoff="none")
        async with library.open_consumer(topic, "c", nsqd=address_of(nsqd), config=config) as consumer:
            await handle_until(library, consumer, fails, lambda: consumer.stats().buried == len(bodies))
        assert (consumer.stats().given_up, consumer.stats().finished) == (len(bodies), 0)

    run(test)
    first = [("attempted 4 times", 4), ("3 attempts, the last one requeued", 3), ("KeyError: 'order'", 3)]
    assert reasons_on_disk(nsqd, topic) == first + [("ValueError: no 3", 3)] * 17


@on_each_loop
def test_a_buried_message_that_is_kicked_comes_back_as_if_it_were_new(
    nsqd: Nsqd, topic: str, library: Any, run: Run
) -> None:
    nsqd.connect().publish(topic, b"bad")
    seen: list[tuple[str, int]] = []

    async def handle(message: Message) -> None:
        seen.append((message.id, message.attempts))
        if len(seen) == 1:
            raise RuntimeError
        if len(seen) == 2:
            message.bury("not yet")

    def is_done() -> bool:
        if len(seen) == 2 and nsqd.channel(topic).get("buried_count"):
            assert nsqd.http("POST", f"/channel/kick?topic={topic}&channel=c").status == 200
        return len(seen) == 3

    async def test() -> None:
        config = Config(default_requeue_delay=0.01, backoff="none")
        async with library.open_consumer(topic, "c", nsqd=address_of(nsqd), config=config) as consumer:
            await handle_until(library, consumer, handle, is_done)

    run(test)
    assert seen == [(seen[0][0], 1), (seen[0][0], 2), (seen[0][0], 1)]
    assert reasons_on_disk(nsqd, topic) == []


@on_each_loop
def test_what_is_not_on_disk_is_not_buried_and_who_tries_hears_it(
    nsqd: Nsqd, topic: str, library: Any, run: Run
) -> None:
    nsqd.connect().publish(topic, b"x")

    async def test() -> None:
        async with library.open_consumer(topic, "c#ephemeral", nsqd=address_of(nsqd)) as consumer:
            async for message in consumer:
                assert not message.can_bury
                with pytest.raises(nsqclient.Unsupported, match="ephemeral"):
                    message.bury("why")
                assert message.finish()
                consumer.stop()

    run(test)


@on_each_loop
def test_what_cannot_be_is_said_at_once(nsqd: Nsqd, library: Any, run: Run) -> None:
    async def test() -> None:
        with pytest.raises(nsqclient.ConfigError, match="invalid topic name"):
            async with library.open_consumer("x$", "c", nsqd=address_of(nsqd)):
                pass
        with pytest.raises(ConnectError, match="connection refused"):
            async with library.open_consumer("t", "c", nsqd="127.0.0.1:1", startup="require"):
                pass

    run(test)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with AuthServer() as server:
        server.answer = lambda asked: granting(EVERYTHING) if asked.secret == "open sesame" else Reply(status=403)
        with Nsqd(tmp_path_factory.mktemp("guarded"), f"auth-http-address={server.address}") as nsqd:
            yield nsqd


@on_each_loop
def test_a_secret_is_shown_to_who_asks_for_it(guarded: Nsqd, topic: str, library: Any, run: Run) -> None:
    address = address_of(guarded)

    async def test() -> None:
        good = Config(auth_secret="open sesame")
        async with library.open_producer(address, config=good) as producer:
            await producer.publish(topic, b"one")
        async with library.open_consumer(topic, "c", nsqd=address, config=good) as consumer:
            (await anext(consumer)).finish()
        for config, text in (
            (Config(), r"^Auth Required$"),
            (Config(auth_secret="no"), "^Error authenticating E_"),
        ):
            with pytest.raises(nsqclient.AuthError, match=text):
                async with library.open_consumer(topic, "c", nsqd=address, config=config) as consumer:
                    await anext(consumer)

    run(test)


# Faults


@on_each_loop
@pytest.mark.slow
def test_nothing_is_lost_by_errors_restarts_and_a_new_consumer(tmp_path: Path, library: Any, run: Run) -> None:
    """3,000 messages: a tenth of the handlers fail, two nsqds restart, one of them after a kill.

    The consumer is replaced when it has received messages after that.
    """
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    count = 3000
    flags = "msg-timeout=2s", "max-msg-timeout=10s"
    nsqds = [SteadyNsqd(tmp_path / name, *flags) for name in "ab"]
    handled: Counter[bytes] = Counter()
    wanted = {b"%d" % number for number in range(count)}
    goals: list[int] = []  # for the first consumer, once both have restarted
    pause = trio.sleep if library is nsqclient else asyncio.sleep

    async def handle(message: Message) -> None:
        while len(handled) >= count // 2 and not goals:  # leave messages for later
            await pause(0.01)
        if chance.random() < 0.1:
            raise Requeue(0.01, backoff=False)
        handled[message.body] += 1

    with ExitStack() as running:
        for nsqd in nsqds:
            running.enter_context(nsqd)
        addresses = [address_of(nsqd) for nsqd in nsqds]

        async def publish() -> None:
            async with library.open_producer(addresses, strategy="round_robin", retry="anywhere") as producer:
                bodies = sorted(wanted)
                for start in range(0, count, 100):
                    await producer.publish_many("t", bodies[start : start + 100])

        async def consume_until(has_enough: Callable[[], bool]) -> None:
            config = Config(max_in_flight=200, max_attempts=0, backoff="none")
            async with library.open_consumer("t", "c", nsqd=addresses, config=config) as consumer:

                async def until(message: Message) -> None:
                    assert sum(it.rdy for it in consumer.stats().connections) <= 200
                    await handle(message)
                    if has_enough():
                        consumer.stop()

                await consumer.run(until, concurrency=20)

        async def in_thread(call: Callable[[], object]) -> None:
            await (trio.to_thread.run_sync(call) if library is nsqclient else asyncio.to_thread(call))

        def has_handled(enough: int) -> bool:
            return len(handled) > enough

        async def trouble() -> None:
            ends: tuple[Callable[[], object], ...] = nsqds[0].stop, nsqds[1].kill
            for nsqd, end, enough in zip(nsqds, ends, (count // 20, count // 4), strict=True):
                await in_thread(partial(eventually, partial(has_handled, enough), 30))
                await in_thread(end)
                await in_thread(nsqd.start)
            goals.append(len(handled) + 400)  # twice what the consumer may still have of the time before

        def has_gone_on() -> bool:
            return bool(goals) and len(handled) >= goals[0]

        async def test() -> None:
            await publish()
            if library is nsqclient:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(trouble)
                    nursery.start_soon(consume_until, has_gone_on)
            else:
                await asyncio.gather(trouble(), consume_until(has_gone_on))
            await consume_until(lambda: len(handled) == count)

        run(test)
        assert set(handled) == wanted
        for nsqd in nsqds:
            eventually(lambda nsqd=nsqd: nsqd.channel("t")["in_flight_count"] == 0)


def test_a_producer_through_kills_has_published_what_it_says(tmp_path: Path) -> None:
    confirmed: list[bytes] = []
    with SteadyNsqd(tmp_path / "a") as nsqd:

        async def publish() -> None:
            async with open_producer(address_of(nsqd)) as producer:
                for number in range(1200):
                    body = b"%d" % number
                    try:
                        await producer.publish("t", body)
                        confirmed.append(body)
                    except NSQError:
                        await trio.sleep(0.05)

        async def trouble() -> None:
            for goal in (200, 600):
                while len(confirmed) < goal:  # noqa: ASYNC110
                    await trio.sleep(0.01)
                await trio.to_thread.run_sync(nsqd.kill)
                await trio.to_thread.run_sync(nsqd.start)

        async def test() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(publish)
                nursery.start_soon(trouble)

        in_trio(test)
        got: Counter[bytes] = Counter()

        async def consume() -> None:
            async with open_consumer("t", "c", nsqd=address_of(nsqd), config=Config(max_in_flight=500)) as consumer:
                async for message in consumer:
                    got[message.body] += 1
                    message.finish()
                    if set(confirmed) <= set(got):
                        return

        in_trio(consume)
        assert max(got.values()) == 1


def test_a_consumer_reports_events(nsqd: Nsqd, topic: str) -> None:
    async def test() -> None:
        async with open_consumer(topic, "c", nsqd=address_of(nsqd)) as consumer:
            event = await anext(consumer.events())
            assert event == events.Connected(address_of(nsqd), "1.3.0")

    in_trio(test)


# Scripts and tests


def test_a_script(nsqd: Nsqd, topic: str) -> None:
    with nsqclient.sync.producer(address_of(nsqd)) as producer:
        producer.publish(topic, b"one", timeout=LIMIT)
        producer.publish_many(topic, [b"two", b"three"])
        with pytest.raises(ValueError, match="an empty message"):
            producer.publish(topic, b"")
    with nsqclient.sync.consumer(topic, "c", nsqd=address_of(nsqd)) as consumer:
        got = []
        for message in islice(consumer.messages(idle_timeout=LIMIT), 3):
            got.append(message.body)
            assert message.finish()
            assert message.answered == "finished"
        assert list(consumer.messages(idle_timeout=0.5)) == []
    assert got == [b"one", b"two", b"three"]
    assert nsqd.channel(topic)["depth"] == 0
    assert not [it for it in threading.enumerate() if it.name == "nsqclient"]
    assert not message.finish()
    consumer.stop()
    with pytest.raises(nsqclient.Stopped):
        list(consumer.messages())
    with pytest.raises(nsqclient.Stopped):
        producer.publish(topic, b"too late")


def test_a_script_buries_and_requeues_without_counting(start_nsqd: StartNsqd, topic: str) -> None:
    nsqd = start_nsqd()
    nsqd.connect().publish(topic, b"bad", b"busy")
    seen: list[tuple[bytes, int]] = []
    config = Config(max_in_flight=1)
    with nsqclient.sync.consumer(topic, "c", nsqd=address_of(nsqd), config=config) as consumer:
        for message in consumer.messages(idle_timeout=LIMIT):
            seen.append((message.body, message.attempts))
            if message.body == b"bad":
                assert message.can_bury
                assert message.bury("no such order")
                assert not message.bury("again")
            elif len(seen) == 2:
                assert message.requeue(0, backoff=False, count=False)
            else:
                message.finish()
                consumer.stop()
    assert seen == [(b"bad", 1), (b"busy", 1), (b"busy", 1)]
    nsqd.kill()
    assert reasons_on_disk(nsqd, topic) == [("no such order", 1)]
    nsqd.start()
    with nsqclient.sync.consumer(topic, "c", nsqd=address_of(nsqd)) as consumer:
        for message in consumer.messages(idle_timeout=0.5):
            assert message.body == b"busy"  # its FIN, unlike the BURY, may have been lost with the process
            message.finish()
    assert reasons_on_disk(nsqd, topic) == [("no such order", 1)]


def test_a_script_stops_and_what_it_has_goes_back(nsqd: Nsqd, topic: str) -> None:
    nsqd.connect().publish(topic, b"one")
    with nsqclient.sync.consumer(topic, "c", nsqd=address_of(nsqd)) as consumer:
        for message in consumer.messages():
            message.requeue(0, backoff=False)
            consumer.stop()
    eventually(lambda: nsqd.channel(topic)["depth"] == 1)
    with pytest.raises(KeyError), nsqclient.sync.consumer(topic, "c", nsqd=address_of(nsqd)) as consumer:
        for _ in consumer.messages():
            raise KeyError
    eventually(lambda: nsqd.channel(topic)["in_flight_count"] == 0)


def test_a_script_hears_what_keeps_it_from_starting() -> None:
    with pytest.raises(ConnectError), nsqclient.sync.producer("127.0.0.1:1", connect="require"):
        pass
    with pytest.raises(nsqclient.ConfigError), nsqclient.sync.consumer("x$", "c", nsqd="127.0.0.1:1"):
        pass
