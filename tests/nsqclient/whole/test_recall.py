"""`cancel` and `reschedule` of nsqclient's producers, in every colour, against real nsqds."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import trio

import nsqclient
from nsqclient import CancelResult, Config, Incomplete, NodeFailure, RescheduleResult, Unsupported, aio, sync
from nsqclient.shell import recalling
from nsqclient.shell import runtime as runtimes
from tests.support.brokers import StartNsqd
from tests.support.certificates import make_certificates
from tests.support.client import TIMEOUT
from tests.support.process import Nsqd
from tests.support.upgraded import trusting

MINUTES = 600.0
PATIENCE = 100.0  # for a node that answers
# With these, only the timeout of the call itself ends its wait for a silent node within our patience.
PATIENT = Config(dial_timeout=300.0, read_timeout=300.0, write_timeout=300.0, drain_timeout=300.0)
NOTHING = CancelResult()
Result = Any
Do = Callable[..., Result]


def in_trio(addresses: Sequence[str], config: Config, method: str, *arguments: Any, **named: Any) -> Result:
    async def run() -> Result:
        async with nsqclient.open_producer(addresses, config=config) as producer:
            return await getattr(producer, method)(*arguments, **named)

    return trio.run(run)


def in_asyncio(addresses: Sequence[str], config: Config, method: str, *arguments: Any, **named: Any) -> Result:
    async def run() -> Result:
        async with aio.open_producer(addresses, config=config) as producer:
            return await getattr(producer, method)(*arguments, **named)

    return asyncio.run(run())


def in_sync(addresses: Sequence[str], config: Config, method: str, *arguments: Any, **named: Any) -> Result:
    with sync.producer(addresses, config=config) as producer:
        return getattr(producer, method)(*arguments, **named)


@pytest.fixture(params=[in_trio, in_asyncio, in_sync])
def do(request: pytest.FixtureRequest) -> Do:
    """Return a function that opens a producer of one colour for one call, and has patience unless it gets a timeout."""
    chosen: Do = request.param
    return partial(chosen, timeout=PATIENCE)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Nsqd]]:
    """Run three nsqds for all tests that leave them alive."""
    folder = tmp_path_factory.mktemp("nodes")
    with ExitStack() as stack:
        yield [stack.enter_context(Nsqd(folder / f"nsqd-{number}")) for number in range(3)]


@pytest.fixture
def nodes(running: list[Nsqd]) -> list[Nsqd]:
    """Return three nsqds with no messages, and no keys, of the topic `t`. It has the channels a and b."""
    for nsqd in running:
        nsqd.http("POST", "/topic/delete?topic=t")
        with_channels(nsqd)
    return running


def with_channels(nsqd: Nsqd, *channels: str) -> Nsqd:
    nsqd.post("/topic/create?topic=t")
    for channel in channels or ("a", "b"):
        nsqd.post(f"/channel/create?topic=t&channel={channel}")
    return nsqd


def place(nsqd: Nsqd) -> str:
    return f"127.0.0.1:{nsqd.tcp[1]}"


def defer(nsqd: Nsqd, key: str, body: str = "x") -> None:
    nsqd.post(f"/pub?topic=t&key={key}&defer=600000", body.encode())


def deferred(nsqd: Nsqd, channel: str = "a") -> list[str]:
    body = nsqd.http("GET", f"/channel/deferred?topic=t&channel={channel}").body
    return [json.loads(line)["key"] for line in body.splitlines()]


def test_a_message_is_taken_back_by_its_key(nodes: list[Nsqd], do: Do) -> None:
    """By a producer of another process than the one that has published it."""
    nsqd, config = nodes[0], Config()
    do([place(nsqd)], config, "publish", "t", b"one", key="k-1", delay=MINUTES)
    do([place(nsqd)], config, "publish", "t", b"two", key="k-2", delay=MINUTES)
    assert do([place(nsqd)], config, "cancel", "t", "k-1") == CancelResult(cancelled=2)
    assert do([place(nsqd)], config, "cancel", "t", "k-2", channel="b") == CancelResult(cancelled=1)
    assert do([place(nsqd)], config, "cancel", "t", "k-1") == CancelResult(done=2)
    assert do([place(nsqd)], config, "cancel", "t", "k-3") == NOTHING
    assert do([place(nsqd)], config, "cancel", "other", "k-1") == NOTHING
    assert do([place(nsqd)], config, "cancel", "t", "k-2", channel="none") == NOTHING
    assert (deferred(nsqd), deferred(nsqd, "b")) == (["k-2"], [])


def test_one_of_three_nodes_has_the_key(nodes: list[Nsqd], do: Do) -> None:
    defer(nodes[1], "k")
    defer(nodes[2], "other")
    assert do([place(it) for it in nodes], Config(), "cancel", "t", "k") == CancelResult(cancelled=2)
    assert [deferred(it) for it in nodes] == [[], [], ["other"]]


def test_a_message_becomes_due_at_another_time(nodes: list[Nsqd], do: Do) -> None:
    defer(nodes[0], "k-1", "late")
    defer(nodes[0], "k-2", "now")
    addresses = [place(it) for it in nodes[:2]]
    assert do(addresses, Config(), "reschedule", "t", "k-1", delay=2 * MINUTES) == RescheduleResult(moved=2)
    assert deferred(nodes[0]) == ["k-2", "k-1"]
    assert do(addresses, Config(), "reschedule", "t", "k-2", delay=0, channel="a") == RescheduleResult(moved=1)
    with nodes[0].connect() as client:
        client.subscribe("t", "a", ready=10)
        assert client.message().body == b"now"
    assert deferred(nodes[0], "b") == ["k-2", "k-1"]


def test_a_consumer_that_has_it_keeps_it(nodes: list[Nsqd], do: Do) -> None:
    nsqd = nodes[0]
    nsqd.post("/pub?topic=t&key=k", b"x")
    with nsqd.connect() as client:
        client.subscribe("t", "a", ready=1)
        client.message()
        assert do([place(nsqd)], Config(), "cancel", "t", "k") == CancelResult(cancelled=1, in_flight=1)


def test_the_answer_holds_after_kill_9(start_nsqd: StartNsqd) -> None:
    nsqd = with_channels(start_nsqd(), "a")
    for number in range(20):
        defer(nsqd, f"k-{number}", f"{number}")
    for number in range(0, 20, 4):
        assert in_sync([place(nsqd)], Config(), "cancel", "t", f"k-{number}") == CancelResult(cancelled=1)
        assert in_sync([place(nsqd)], Config(), "cancel", "t", f"k-{number + 2}") == CancelResult(cancelled=1)
        if number % 8 == 0:
            nsqd.kill()
            nsqd.start()
    for number in range(20):
        found = in_sync([place(nsqd)], Config(), "reschedule", "t", f"k-{number}", delay=0)
        assert found == (RescheduleResult(moved=1) if number % 2 else RescheduleResult(done=1))
    nsqd.kill()
    nsqd.start()
    with nsqd.connect() as client:
        client.subscribe("t", "a", ready=100)
        messages = client.messages(10)
        client.finish(*messages)
        assert sorted(int(it.body) for it in messages) == list(range(1, 20, 2))
        assert client.stays_silent(0.2)


def only_limit(monkeypatch: pytest.MonkeyPatch, silent: Nsqd) -> None:
    """Apply the timeout of a call to this node alone, because on a busy machine the others may take as long."""

    async def within(runtime: Any, seconds: float, work: Any, otherwise: Any) -> Any:
        node = work.args[1]
        return await runtimes.within(runtime, seconds if node.address == place(silent) else PATIENCE, work, otherwise)

    monkeypatch.setattr(recalling, "within", within)


@pytest.mark.parametrize("signalled", [signal.SIGSTOP, signal.SIGKILL], ids=["hung", "killed"])
def test_a_node_that_does_not_answer_is_named(
    start_nsqd: StartNsqd,
    nodes: list[Nsqd],
    do: Do,
    signalled: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silent = start_nsqd()
    addresses = [place(it) for it in (*nodes[:2], silent)]
    defer(nodes[0], "k")
    silent.send_signal(signalled)
    only_limit(monkeypatch, silent)
    began = time.monotonic()
    try:
        with pytest.raises(Incomplete) as raised:
            do(addresses, PATIENT, "cancel", "t", "k", timeout=5.0)
        assert time.monotonic() - began < PATIENCE
    finally:
        silent.send_signal(signal.SIGCONT)
    result = raised.value.result
    assert isinstance(result, CancelResult)
    assert result.cancelled == 2
    [failure] = result.failures
    assert failure.address == place(silent)
    assert place(silent) in str(raised.value)


def test_a_node_that_hangs_after_the_connection_was_made_is_named_in_time(
    nodes: list[Nsqd], monkeypatch: pytest.MonkeyPatch
) -> None:
    with sync.producer([place(it) for it in nodes[:2]], config=PATIENT) as producer:
        assert producer.cancel("t", "k", timeout=PATIENCE) == NOTHING
        defer(nodes[0], "k")
        nodes[1].send_signal(signal.SIGSTOP)
        try:
            with monkeypatch.context() as patch:
                only_limit(patch, nodes[1])
                with pytest.raises(Incomplete) as raised:
                    producer.cancel("t", "k", timeout=3)
        finally:
            nodes[1].send_signal(signal.SIGCONT)
        failures = (NodeFailure(place(nodes[1]), "no answer within 3 seconds"),)
        assert raised.value.result == CancelResult(cancelled=2, failures=failures)
        assert producer.cancel("t", "k", timeout=PATIENCE) == CancelResult(done=2)


@contextmanager
def nsqd_of_nsq() -> Iterator[str]:
    """Run something that answers IDENTIFY as NSQ's own nsqd does."""
    server = socket.create_server(("127.0.0.1", 0))
    kept: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            kept.append(connection)
            connection.recv(65536)
            terms = b'{"max_rdy_count":2500,"version":"1.3.0","msg_timeout":60000}'
            connection.sendall(struct.pack(">ii", len(terms) + 4, 0) + terms)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(TIMEOUT)
        for connection in kept:
            connection.close()


def test_an_nsqd_of_nsq_cannot_do_it(nodes: list[Nsqd], do: Do) -> None:
    nsqd = nodes[0]
    defer(nsqd, "k")
    with nsqd_of_nsq() as other:
        for method, more in (("cancel", {}), ("reschedule", {"delay": 0})):
            with pytest.raises(Unsupported, match="knows no keys"):
                do([other], Config(), method, "t", "k", **more)
        with pytest.raises(Incomplete) as raised:
            do([other, place(nsqd)], Config(), "cancel", "t", "k")
    assert raised.value.result.failures[0].address == other
    assert deferred(nsqd) == []


def test_an_nsqd_that_remembers_no_keys_says_so(start_nsqd: StartNsqd) -> None:
    nsqd = with_channels(start_nsqd("idempotence-window=0s"))
    with sync.producer(place(nsqd)) as producer, pytest.raises(Unsupported, match="knows no keys"):
        producer.cancel("t", "k")


def test_the_token_goes_where_auth_has_sent_it_and_over_https_if_the_connection_is_secure(
    start_nsqd: StartNsqd, tmp_path: Path, do: Do
) -> None:
    made = make_certificates(tmp_path)
    rights = tmp_path / "rights.toml"
    rights.write_text("".join(
        f'[[allow]]\nname = "{role}"\ntoken_sha256 = "{sha256(role.encode()).hexdigest()}"\nroles = ["{role}"]\n'
        for role in ("publish", "read", "admin")
    ))  # fmt: skip
    tls = ("https-address=127.0.0.1:0", f"tls-cert={made.certificate}", f"tls-key={made.key}", "tls-required=true")
    nsqd = start_nsqd(f"rights-file={rights}", *tls)
    context = trusting(made)
    config = Config(tls="require", ssl_context=context, auth_secret="publish")
    admin = {"Authorization": "Bearer admin"}
    nsqd.http("POST", "/topic/create?topic=t", headers=admin, tls=context)
    nsqd.http("POST", "/channel/create?topic=t&channel=a", headers=admin, tls=context)
    do([place(nsqd)], config, "publish", "t", b"x", key="k", delay=MINUTES)
    reader = Config(tls="require", ssl_context=context, auth_secret="read")
    with pytest.raises(Incomplete, match="got response 403 FORBIDDEN"):
        do([place(nsqd)], reader, "cancel", "t", "k")
    assert do([place(nsqd)], config, "cancel", "t", "k") == CancelResult(cancelled=1)


def test_after_tls_nothing_is_sent_in_plain_text(start_nsqd: StartNsqd, tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    nsqd = start_nsqd("https-address=", f"tls-cert={made.certificate}", f"tls-key={made.key}")
    config = Config(tls="require", ssl_context=trusting(made))
    with sync.producer(place(nsqd), config=config) as producer, pytest.raises(Unsupported, match="serves no HTTPS"):
        producer.cancel("t", "k")


def test_another_nsqd_at_the_told_port_does_not_answer_for_it(start_nsqd: StartNsqd, nodes: list[Nsqd]) -> None:
    """As with the ports of containers that are mapped, and nsqd does not know of it."""
    other = nodes[0]
    nsqd = with_channels(start_nsqd(f"broadcast-http-port={other.http_address[1]}"))
    defer(nsqd, "k")
    with sync.producer(place(nsqd)) as producer, pytest.raises(Incomplete, match="--broadcast-http-port"):
        producer.cancel("t", "k")
    assert deferred(nsqd) == ["k"]


def test_a_unix_socket_has_the_http_of_this_machine(start_nsqd: StartNsqd, tmp_path: Path, do: Do) -> None:
    nsqd = with_channels(start_nsqd())
    defer(nsqd, "k")
    path = str(tmp_path / "s")
    nsqd.kill()
    second = Nsqd(nsqd.data_path, f"tcp-address={path}")
    with second:
        assert do([path], Config(), "cancel", "t", "k") == CancelResult(cancelled=2)
