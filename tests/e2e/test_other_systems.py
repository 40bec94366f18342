"""What runs where Linux' own calls are missing: everything, on a Python from which they were taken (as_macos.py)."""

from __future__ import annotations

import os
import re
import subprocess
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from nsqcommon.readiness import VARIABLE
from tests.e2e import as_macos
from tests.support.process import PYTHON, PYTHONPATH, Daemon, Nsqadmin, Nsqd, Nsqlookupd, eventually, run_to_end
from tests.support.tools import LIMIT, address

AS_MACOS: Final = (PYTHON, "-P", as_macos.__file__)
MESSAGES: Final = 50


@pytest.fixture
def elsewhere() -> Iterator[Callable[[Daemon], None]]:
    """Return a function that starts a daemon without what only Linux has."""
    with ExitStack() as running:

        def start(daemon: Daemon) -> None:
            daemon.command = (*AS_MACOS, daemon.program)
            running.enter_context(daemon)

        yield start


def run_elsewhere(*command: str, input: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*AS_MACOS, *command],
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        input=input,
        capture_output=True,
        timeout=LIMIT,
        check=False,
    )


def kinds_of_descriptors(daemon: Daemon) -> Counter[str]:
    folder = Path(f"/proc/{daemon.pid}/fd")
    while True:
        try:
            return Counter(re.sub(r":\[\d+\]$", "", os.readlink(folder / name)) for name in os.listdir(folder))
        except FileNotFoundError:  # it was closed since it was listed
            continue


def test_nsqd_keeps_its_promises_elsewhere(tmp_path: Path, elsewhere: Callable[[Daemon], None]) -> None:
    syncs = tmp_path / "syncs"
    bodies = [b"%d" % number for number in range(MESSAGES)]
    nsqd = Nsqd(tmp_path / "data", "ack=synced", "mem-queue-size=10", environ={as_macos.MARK: str(syncs)})
    elsewhere(nsqd)
    before = syncs.stat().st_size
    publisher = nsqd.connect()
    for body in bodies:
        publisher.publish("t", body)
    assert syncs.stat().st_size - before >= MESSAGES  # F_FULLFSYNC, as none of them waited together with another
    assert nsqd.http("POST", "/pub?topic=t", b"over HTTP").body == b"OK"
    assert nsqd.http("GET", "/metrics").status == 200
    nsqd.restart()
    client = nsqd.connect()
    client.subscribe("t", "c", ready=MESSAGES + 1)
    assert client.bodies(MESSAGES + 1) == [*bodies, b"over HTTP"]
    kinds = kinds_of_descriptors(nsqd)
    assert kinds["anon_inode:[eventfd]"] == 0
    assert kinds["pipe"] > 0
    refused = run_to_end(f"--data-path={nsqd.data_path}", "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0")
    assert (refused.returncode, "failed to lock data-path" in refused.stderr) == (1, True), refused.stderr
    assert nsqd.stop() == 0
    assert "Traceback" not in nsqd.log


def test_a_whole_cluster_runs_elsewhere(tmp_path: Path, elsewhere: Callable[[Daemon], None]) -> None:
    lookupd = Nsqlookupd()
    elsewhere(lookupd)
    nsqd = Nsqd(tmp_path, f"lookupd-tcp-address={address(lookupd.tcp)}", "broadcast-address=127.0.0.1")
    elsewhere(nsqd)
    nsqadmin = Nsqadmin(f"lookupd-http-address={address(lookupd.http_address)}")
    elsewhere(nsqadmin)
    nsqd.connect().publish("t", b"body")
    eventually(lambda: lookupd.producers("t") == {nsqd.tcp[1]})
    eventually(lambda: b">t<" in nsqadmin.http("GET", "/").body)
    for daemon in (nsqadmin, nsqd, lookupd):
        assert daemon.stop() == 0
        assert "Traceback" not in daemon.log


IN_ALL_COLOURS: Final = """
    import asyncio, importlib, pkgutil, sys
    import trio
    import nsqclient, nsqclient.aio, nsqclient.blocking, nsqclient.sync, nsqtools

    assert sys.platform == "darwin"
    for package in (nsqclient, nsqtools):
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if module.name not in ("nsqclient.pytest_plugin", "nsqclient.otel", "nsqtools.__main__"):  # have extras
                importlib.import_module(module.name)

    nsqd, topic = sys.argv[1:]

    async def on_trio():
        async with nsqclient.open_producer(nsqd) as producer:
            await producer.publish(topic, b"trio")
        async with nsqclient.open_consumer(topic, "trio", nsqd=nsqd) as messages:
            async for message in messages:
                message.finish()
                return message.body

    async def on_asyncio():
        async with nsqclient.aio.open_producer(nsqd) as producer:
            await producer.publish(topic + "2", b"asyncio")
        async with nsqclient.aio.open_consumer(topic + "2", "asyncio", nsqd=nsqd) as messages:
            async for message in messages:
                message.finish()
                return message.body

    print(trio.run(on_trio), asyncio.run(on_asyncio()))
"""


def test_the_client_needs_nothing_of_linux(nsqd: Nsqd, topic: str, tmp_path: Path) -> None:
    script = tmp_path / "in_all_colours.py"
    script.write_text(textwrap.dedent(IN_ALL_COLOURS))
    done = run_elsewhere(str(script), address(nsqd.tcp), topic)
    assert done.stdout == b"b'trio' b'asyncio'\n", done.stderr.decode()


def test_the_tools_need_nothing_of_linux(nsqd: Nsqd, topic: str, tmp_path: Path) -> None:
    tcp, http = f"--nsqd-tcp-address={address(nsqd.tcp)}", f"--nsqd-http-address={address(nsqd.http_address)}"
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/channel/create?topic={topic}&channel=c")
    calls = {
        "to_nsq": (f"--topic={topic}", tcp),
        "nsq_tail": (f"--topic={topic}", "--channel=c", "-n=2", tcp),
        "nsq_stat": (f"--topic={topic}", "--channel=c", "--count=1", "--interval=10ms", http),
        "nsq_bench": ("--mode=pub", "--connections=1", "--runfor=100ms", f"--topic={topic}-bench", tcp),
    }
    done = {tool: run_elsewhere("nsqtools", tool, *it, input=b"one\ntwo\n") for tool, it in calls.items()}
    assert {tool: it.returncode for tool, it in done.items()} == dict.fromkeys(calls, 0), done
    assert done["nsq_tail"].stdout == b"one\ntwo\n"


@pytest.mark.parametrize("poller", ["", "portable"])
def test_nsqd_polls_as_the_environment_says(poller: str, tmp_path: Path) -> None:
    """Only Linux has the choice. Fifty clients talk to it at the same time, one of which goes in the middle."""
    with Nsqd(tmp_path, environ={VARIABLE: poller}) as nsqd:
        epolls = kinds_of_descriptors(nsqd)["anon_inode:[eventpoll]"]
        assert epolls == (1 if poller else 2)  # trio's, and ours
        clients = [nsqd.connect() for _ in range(50)]
        for number, client in enumerate(clients):
            client.subscribe("t", f"c{number}", ready=MESSAGES)
        clients.pop().close()
        for number in range(MESSAGES):
            clients[number % len(clients)].publish("t", b"%d" % number)
        expected = [b"%d" % number for number in range(MESSAGES)]
        for client in clients:
            assert sorted(client.bodies(MESSAGES), key=int) == expected
        assert nsqd.stop() == 0
        assert "Traceback" not in nsqd.log
