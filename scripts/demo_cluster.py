"""The cluster of compose.yaml as processes of this machine, with a shop on it: what `scripts/demo` runs.

The shop has troubles, so that nsqadmin has something to show: a label printer that jams, a bad release, invoices without
an address, Celery tasks that fail (`deploy/demo/shop.py`). And ten customers share a printer, one of whom has thousands of
jobs: the policy lets them take turns.

Each process is started when what it needs can be reached, and started again when it dies. At the end they stop in the
opposite order, the producer long enough before its consumers that these can finish what is there, and the sums are
shown. If the demo is killed, its guard ends them.
"""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Final
from urllib.error import URLError
from urllib.request import urlopen

import trio

from nsqcommon.options import option
from nsqcommon.subcommands import Command, parsed_by, run_command
from scripts.demo_guard import Guard

ROOT: Final = Path(__file__).resolve().parent.parent
HOST: Final = "127.0.0.1"
TOPIC: Final = "orders"
CHANNELS: Final = ("billing", "shipping")
PRINTER: Final = "printer"  # the channel of the topic that customers share, and who consumes it
POLICY: Final = '[[policy]]\ntopic = "prints"\nchannel = "printer"\nshare = "group"\n'
START_TIMEOUT: Final = 30.0
STOP_TIMEOUT: Final = 20.0
CATCH_UP_TIMEOUT: Final = 30.0
RESTART_PAUSE: Final = 2.0
SHIFTS: Final = (0, 10_000, 20_000, 30_000)  # of ports, where nobody has chosen one


class Failed(Exception):
    """What the person in front of the terminal should know; the demo ends."""


@dataclass(frozen=True, slots=True)
class Program:
    name: str
    command: Sequence[str]
    ping: str = ""  # a URL that answers when it is ready


@dataclass(slots=True)
class Cluster:
    """Who is where. Ports as in compose.yaml, all moved by `shift`."""

    folder: Path
    shift: int
    rate: float
    trouble_after: float = 30.0  # seconds
    nsqds: list[int] = field(init=False)  # TCP ports; HTTP is the next one
    nsqlookupds: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.nsqds = [4150 + self.shift, 4250 + self.shift, 4350 + self.shift]
        self.nsqlookupds = [4160 + self.shift, 4260 + self.shift]

    @property
    def admin_port(self) -> int:
        return 4171 + self.shift

    @property
    def ports(self) -> list[int]:
        pairs = [*self.nsqlookupds, *self.nsqds]
        return [*pairs, *(port + 1 for port in pairs), self.admin_port]

    def taken_ports(self) -> list[int]:
        return [port for port in self.ports if _is_taken(port)]

    def discovery(self) -> Iterator[Program]:
        for number, port in enumerate(self.nsqlookupds, start=1):
            yield _daemon(f"nsqlookupd{number}", "nsqlookupd", port, f"--broadcast-address={HOST}")

    def brokers(self) -> Iterator[Program]:
        policy = self.folder / "policy.toml"
        policy.write_text(POLICY, encoding="utf-8")
        for number, port in enumerate(self.nsqds, start=1):
            data = self.folder / f"nsqd{number}"
            data.mkdir(exist_ok=True)
            yield _daemon(
                f"nsqd{number}",
                "nsqd",
                port,
                f"--broadcast-address={HOST}",
                f"--node-id={number}",
                f"--data-path={data}",
                "--retention-time=24h",
                f"--policy-file={policy}",
                *(f"--lookupd-tcp-address={HOST}:{it}" for it in self.nsqlookupds),
            )

    def admin(self) -> Iterator[Program]:
        url = f"http://{HOST}:{self.admin_port}/ping"
        addresses = [f"--lookupd-http-address={HOST}:{it + 1}" for it in self.nsqlookupds]
        listen = f"--http-address={HOST}:{self.admin_port}"
        yield Program("nsqadmin", [*_module("nsqadmin"), listen, "--enable-publish", *addresses], url)

    def consumers(self) -> Iterator[Program]:
        lookupds = [f"--lookupd={HOST}:{it + 1}" for it in self.nsqlookupds]
        for channel in CHANNELS:
            yield Program(channel, [*_traffic("consume"), f"--topic={TOPIC}", f"--channel={channel}", *lookupds])

    def printer(self) -> Program:
        return Program(PRINTER, [*_traffic("share"), *self._nsqds()])

    def departments(self) -> Iterator[Program]:
        """Yield the rest of the shop. Both releases of the ledger's program run, as in the middle of a rollout."""
        trouble = f"--trouble-after={self.trouble_after}"
        for name in ("office", "tasks"):
            yield Program(name, [*_shop(name), *self._nsqds()])
        yield Program("labels", [*_shop("labels"), trouble, *self._nsqds()])
        for release in ("1.9", "2.0"):
            yield Program(f"ledger-{release}", [*_shop("ledger"), f"--release={release}", trouble, *self._nsqds()])

    def producer(self) -> Program:
        return Program("producer", [*_traffic("produce"), f"--topic={TOPIC}", f"--rate={self.rate}", *self._nsqds()])

    def _nsqds(self) -> list[str]:
        return [f"--nsqd={HOST}:{it}" for it in self.nsqds]


def _module(name: str) -> list[str]:
    return [sys.executable, "-P", "-m", name]


def _traffic(kind: str) -> list[str]:
    return [sys.executable, str(ROOT / "deploy" / "demo" / "traffic.py"), kind]


def _shop(department: str) -> list[str]:
    return [*_module("deploy.demo.shop"), department]


def _daemon(name: str, module: str, port: int, *flags: str) -> Program:
    addresses = (f"--tcp-address={HOST}:{port}", f"--http-address={HOST}:{port + 1}")
    return Program(name, [*_module(module), *addresses, *flags], f"http://{HOST}:{port + 1}/ping")


class Running:
    """One process that is kept alive until it is asked to stop. What it says is in a file."""

    def __init__(self, program: Program, folder: Path, guard: Guard) -> None:
        self.program = program
        self._guard = guard
        self.log = folder / f"{program.name}.log"
        self._is_ready = not program.ping
        self._stopping = trio.Event()
        self._ended = trio.Event()
        self._process: trio.Process | None = None

    async def keep_alive(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with self.log.open("ab") as log:
            while not self._stopping.is_set():
                self._process = await trio.lowlevel.open_process(
                    self.program.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    # Ctrl-C is for us: they stop in an order.
                    start_new_session=True,
                    env=self._guard.environment,
                )
                self._guard.watch(self._process.pid)
                if self._stopping.is_set():
                    self._process.terminate()
                task_status.started()
                task_status = trio.TASK_STATUS_IGNORED
                status = await self._process.wait()
                self._guard.forget(self._process.pid)
                # A program that never came up would not come up the next time either.
                if self._stopping.is_set() or not self._is_ready:
                    break
                say(f"{self.program.name} ended ({_how(status)}) and is started again; its log: {self.log}")
                with trio.move_on_after(RESTART_PAUSE):
                    await self._stopping.wait()
        self._ended.set()

    async def wait_until_ready(self) -> None:
        with trio.move_on_after(START_TIMEOUT):
            while not self._ended.is_set():
                if await trio.to_thread.run_sync(_answers, self.program.ping):
                    self._is_ready = True
                    return
                await trio.sleep(0.05)
        raise Failed(
            f"{self.program.name} does not answer at {self.program.ping}; the end of its log:\n{self.last_words()}"
        )

    async def stop(self) -> None:
        self._stopping.set()
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        with trio.move_on_after(STOP_TIMEOUT) as limit:
            await self._ended.wait()
        if limit.cancelled_caught:
            say(f"{self.program.name} did not stop within {STOP_TIMEOUT:.0f} s and is killed")
            self._process.kill()
            await self._ended.wait()

    def last_words(self, lines: int = 10) -> str:
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])

    def latest(self, beginning: str) -> str:
        """Return the last line of what it says that begins so, if there is one."""
        said = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return next((line for line in reversed(said) if line.startswith(beginning)), "")

    def counted(self, word: str) -> int:
        """Return the sum of the last counts that each start of the process has logged."""
        total = last = 0
        for found in re.findall(rf'{{"{word}": (\d+)}}', self.log.read_text(encoding="utf-8", errors="replace")):
            now = int(found)
            if now < last:  # a new life
                total += last
            last = now
        return total + last


async def run(cluster: Cluster, guard: Guard) -> None:
    async with trio.open_nursery() as nursery:
        started: list[Running] = []
        try:
            with trio.CancelScope() as until_signal:
                nursery.start_soon(_cancel_on_signal, until_signal)
                await _start(nursery, cluster, guard, started)
                _explain(cluster)
                await _report(started)
            await _wind_up(started)
        finally:
            with trio.CancelScope(shield=True):
                for running in reversed(started):
                    await running.stop()
        _sum_up(started)
        nursery.cancel_scope.cancel()


async def _cancel_on_signal(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as arrivals:
        async for _ in arrivals:
            scope.cancel()


async def _start(nursery: trio.Nursery, cluster: Cluster, guard: Guard, started: list[Running]) -> None:
    async for batch in _in_order(cluster):
        fresh = [Running(program, cluster.folder, guard) for program in batch]
        for running in fresh:
            started.append(running)
            with trio.CancelScope(shield=True):  # what is in the list has a process
                await nursery.start(running.keep_alive)
        for running in fresh:
            if running.program.ping:
                await running.wait_until_ready()


async def _in_order(cluster: Cluster) -> AsyncIterator[list[Program]]:
    yield list(cluster.discovery())
    yield list(cluster.brokers())
    yield list(cluster.admin())
    # Before the first message, so that each channel gets every one.
    await create_channels(cluster)
    yield [*cluster.consumers(), cluster.printer(), *cluster.departments()]
    yield [cluster.producer()]


async def create_channels(cluster: Cluster) -> None:
    for port in cluster.nsqds:
        for path in (f"topic/create?topic={TOPIC}", *(f"channel/create?topic={TOPIC}&channel={it}" for it in CHANNELS)):
            url = f"http://{HOST}:{port + 1}/{path}"
            with trio.move_on_after(START_TIMEOUT) as patience:  # somebody may have killed it, and it starts again
                while not await trio.to_thread.run_sync(_answers, url, b""):  # noqa: ASYNC110  # another process
                    await trio.sleep(0.2)
            if patience.cancelled_caught:
                raise Failed(f"no answer from {url}")


def _answers(url: str, posted: bytes | None = None) -> bool:
    try:
        with urlopen(url, data=posted, timeout=2):
            return True
    except (URLError, OSError, HTTPException):
        return False


def _explain(cluster: Cluster) -> None:
    admin, http = f"http://{HOST}:{cluster.admin_port}", cluster.nsqds[0] + 1
    say(f"""\
ready: a shop on 3 nsqd, with 2 nsqlookupd and nsqadmin

  open             {admin}/

In a minute, things have gone wrong in the shop. Try:

  who is stuck?    {admin}/topics/shipments/labels: its printer jams after {cluster.trouble_after:.0f} s; kill -9 its program, and it starts again
  a bad release    {admin}/topics/payments/ledger?tab=consumers: which of the two releases fails?
  kick and undo    {admin}/topics/invoices/mail?tab=buried: deliver failed invoices again, two a second; stop; undo
  a failed task    {admin}/jobs: which task fails, and why? Retry one
  who waits        {admin}/topics/prints/printer?tab=groups: acme has thousands of jobs; do the other customers wait?

  publish          curl -d hello 'http://{HOST}:{http}/pub?topic=greetings'
  lookup           curl 'http://{HOST}:{cluster.nsqlookupds[0] + 1}/lookup?topic=orders'
  data and logs    {cluster.folder}

Kill a node and see the others go on: it is started again. Ctrl-C stops all.""")


async def _report(started: list[Running]) -> None:
    while True:
        await trio.sleep(5)
        say(_sums(started))
        if (printer := _named(started, PRINTER)) and (line := printer.latest("prints: ")):
            say(line)


async def _wind_up(started: list[Running]) -> None:
    """The producer stops; consumers get the time to finish what is there."""
    producer = _named(started, "producer")
    if producer is None:
        return
    say("stopping: the producer first, then whoever has finished what is there")
    await producer.stop()
    with trio.move_on_after(CATCH_UP_TIMEOUT):
        while any(  # noqa: ASYNC110  # another process
            it.counted("finished") < producer.counted("published") for it in started if it.program.name in CHANNELS
        ):
            await trio.sleep(0.2)


def _sum_up(started: list[Running]) -> None:
    if _named(started, "producer") is not None:
        say(f"stopped. {_sums(started)}")


def _sums(started: list[Running]) -> str:
    parts = []
    for running in started:
        if running.program.name == "producer":
            parts.append(f"published {running.counted('published')}")
        elif running.program.name in CHANNELS:
            parts.append(f"{running.program.name} {running.counted('finished')}")
    return ", ".join(sorted(parts, key=lambda it: not it.startswith("published")))


def _named(started: list[Running], name: str) -> Running | None:
    return next((it for it in started if it.program.name == name), None)


def _how(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"exit status {status}"


def say(text: str) -> None:
    print(text, flush=True)


@contextmanager
def _folder(chosen: str) -> Iterator[Path]:
    if chosen:
        folder = Path(chosen).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    temporary = Path(tempfile.mkdtemp(prefix="nsq-demo-"))
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    folder: str = option("", "for data and logs; they stay (default: a temporary one, removed)")
    shift_ports: int | None = option(
        None,
        "add N to each port, 4150 and so on (default: 0, or where ports are in use 10000, 20000, ...)",
        kind=parsed_by(int, "N"),
    )
    rate: float = option(50.0, "orders a second")
    trouble_after: float = option(30.0, "seconds until things go wrong in the shop")


def main() -> int:
    demo = Command(table=DemoOptions, run=start, about="A cluster on this machine. Ctrl-C stops it.")
    return run_command(demo, sys.argv[1:], "scripts/demo")


def start(chosen: DemoOptions) -> int:
    with _folder(chosen.folder) as folder:
        shifts = SHIFTS if chosen.shift_ports is None else (chosen.shift_ports,)
        cluster = first_free([Cluster(folder, shift, chosen.rate, chosen.trouble_after) for shift in shifts])
        if cluster is None:
            return 1
        status = 0
        guard = Guard(None if chosen.folder else folder)
        try:
            trio.run(run, cluster, guard)
        except* Failed as failures:
            say(f"demo: {failures.exceptions[0]}")
            status = 1
        finally:
            guard.close()
    return status


def first_free(clusters: Sequence[Cluster]) -> Cluster | None:
    """Return the first one whose ports are all free, and say so where it is not the one at the usual ports."""
    taken = ", ".join(map(str, clusters[0].taken_ports()))
    for cluster in clusters:
        if not cluster.taken_ports():
            if cluster is not clusters[0]:
                say(f"demo: in use: {taken}; all ports are moved by {cluster.shift}")
            return cluster
    say(f"demo: in use: {taken}; stop what listens there, or choose other ports with --shift-ports")
    return None


def _is_taken(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((HOST, port))
        except OSError:
            return True
    return False


if __name__ == "__main__":
    sys.exit(main())
