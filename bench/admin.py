"""nsqadmin with a big cluster: the time of a page, the cost of live updates with and without viewers, and memory.

With workers that report a thousand jobs a second: what that costs, with and without a look at the page of jobs.

And a search through a history of Protobuf messages, and how long other requests wait meanwhile.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from struct import pack
from typing import Final
from urllib.parse import quote

from bench.brokers import Broker, nsqd_factory, running_daemon
from bench.builds import Build
from bench.ports import take_port
from bench.processes import processor_share, resident_megabytes, wait_until
from bench.report import Benchmark, Row, at_least, at_most
from bench.settings import Settings
from bench.work import HOST, Failed, Work, say, started
from scripts.command_line import option

START_LIMIT: Final = 60.0
PAGES: Final = ("/", "/topics", "/topics/topic-7", "/topics/topic-7/channel-0", "/nodes")
VIEWERS: Final = 50
_BATCH: Final = 2000  # messages of an MPUB
_ITEMS: Final = [{"sku": "tea", "price": 1.5}] * 3
_ORDERS: Final = """
[[decoder]]
topic = "orders"
decode = "protobuf"
descriptors = "shop.desc"
message = "shop.Order"
"""
_REACHABLE: Final = ("--broadcast-address=127.0.0.1",)  # nsqadmin connects to listen to reports


@dataclass(kw_only=True)
class AdminSettings(Settings):
    nodes: int = option(3, "nodes")
    topics: int = option(2000, "topics")
    channels: int = option(3, "channels of each topic")
    lively: str = option("0.1,1", "share of the topics whose numbers change", word="SHARE,...")
    seconds: float = option(30.0, "length of each measurement")
    jobs: int = option(1000, "jobs a second that workers report; 0: leave that out")
    protobuf: int = option(40_000, "Protobuf messages to search; 0: leave that out")


def run(settings: AdminSettings, work: Work) -> list[Row]:
    rows: list[Row] = []
    for lively in (float(it) for it in settings.lively.split(",")):
        with work.new_folder("admin") as folder:
            rows += _measured(settings, folder, lively)
    if settings.jobs:
        with work.new_folder("admin") as folder, nsqd_factory(work, Build.PURE, _REACHABLE)() as nsqd:
            rows += _with_jobs(settings, folder, nsqd)
    if settings.protobuf:
        with work.new_folder("admin") as folder, nsqd_factory(work, Build.PURE, _REACHABLE)() as nsqd:
            rows += _with_protobuf(settings, folder, nsqd)
    return rows


def _with_protobuf(settings: AdminSettings, folder: Path, nsqd: Broker) -> list[Row]:
    """Search for conditions on a field, and for a text, which needs every field of every message."""
    from tests.nsqadmin.decoding.decoders_files import write_decoders  # it needs the extra admin-decoders

    _publish_orders(nsqd, settings.protobuf)
    name, port = f"{settings.protobuf:,} Protobuf messages", take_port()
    decoders = write_decoders(folder, _ORDERS)
    command = [sys.executable, "-m", "nsqadmin", f"--http-address={HOST}:{port}", f"--decoders-file={decoders}"]
    command += [f"--nsqd-http-address={HOST}:{nsqd.http_port}"]
    with running_daemon(command, Broker(port, port), folder / "log") as pid:
        wait_until(partial(_has_logged, port, settings.protobuf), START_LIMIT, "nsqadmin has seen the topic", 0.5)
        fields, pauses = _search_times(port, "customer.country = DE", settings.protobuf)
        texts, _ = _search_times(port, "nowhere", settings.protobuf)
        resident = resident_megabytes(pid, "VmHWM")
    say(f"{name}: {min(fields):.1f} s by a field, {min(texts):.1f} s by a text, {resident:.0f} MB")
    return [
        Row(f"{name}: customer.country = DE", "s", tuple(fields), at_most(5)),
        Row(f"{name}: a text", "s", tuple(texts), at_most(10)),
        Row(f"{name}: longest pause of /ping", "ms", tuple(pauses), at_most(200)),
        Row(f"{name}: peak resident", "MB", (resident,), at_most(300)),
    ]


def _publish_orders(nsqd: Broker, count: int) -> None:
    from tests.support import shop

    nsqd.post("/topic/create?topic=orders", b"")
    nsqd.post("/channel/create?topic=orders&channel=c", b"")
    for first in range(0, count, _BATCH):
        numbers = range(first, min(count, first + _BATCH))
        bodies = [shop.protobuf_order(it, "FR" if it % 1000 else "DE", items=_ITEMS) for it in numbers]
        packed = pack(">I", len(bodies)) + b"".join(pack(">I", len(body)) + body for body in bodies)
        nsqd.post("/mpub?topic=orders&binary=true", packed)


def _has_logged(port: int, count: int) -> bool:
    try:
        return bool(sum(it["next"] for it in json.loads(_get(port, "/api/v2/logs/orders"))["logs"]) == count)
    except (OSError, ValueError, KeyError):  # it doesn't know the topic yet
        return False


def _search_times(port: int, wanted: str, count: int) -> tuple[list[float], list[float]]:
    """Search a few times. Return the seconds of each, and the longest answer to /ping meanwhile, in ms."""
    times, pauses = [], []
    for _ in range(3):
        stop, longest = threading.Event(), [0.0]

        def ping(stop: threading.Event = stop, longest: list[float] = longest) -> None:
            while not stop.wait(0.02):
                began = time.perf_counter()
                _get(port, "/ping")
                longest[0] = max(longest[0], time.perf_counter() - began)

        thread = threading.Thread(target=ping)
        thread.start()
        began = time.perf_counter()
        answer = _get(port, f"/api/v2/search/orders?filter={quote(wanted)}&format=ndjson")
        times.append(time.perf_counter() - began)
        stop.set()
        thread.join()
        pauses.append(longest[0] * 1000)
        if json.loads(answer.splitlines()[-1])["end"]["looked"] != count:
            raise Failed("the search has not looked at all messages")
    return times, pauses


def _with_jobs(settings: AdminSettings, folder: Path, nsqd: Broker) -> list[Row]:
    name, port = f"{settings.jobs:,} jobs/s", take_port()
    nsqd.post("/topic/create?topic=jobs-1", b"")
    nsqd.post("/channel/create?topic=jobs-1&channel=jobs", b"")
    command = [sys.executable, "-m", "nsqadmin", f"--http-address={HOST}:{port}"]
    command += [f"--nsqd-http-address={HOST}:{nsqd.http_port}"]
    workers = [sys.executable, "-m", "bench.admin_jobs", str(nsqd.tcp_port), str(settings.jobs)]
    with running_daemon(command, Broker(port, port), folder / "log") as pid:
        wait_until(partial(_has_sampled, port, 1), START_LIMIT, "nsqadmin has sampled everything", 0.5)
        before = processor_share(pid, settings.seconds)
        with started(workers, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()  # it has published what waits, and reports
            wait_until(partial(_has_jobs, port), START_LIMIT, "nsqadmin has heard of jobs", 0.5)
            heard, began = _jobs_heard(port), time.monotonic()
            alone = processor_share(pid, settings.seconds)
            heard, began = _jobs_heard(port) - heard, time.monotonic() - began
            with _looking(port, "/jobs"):
                looked_at = processor_share(pid, settings.seconds)
        resident = resident_megabytes(pid, "VmHWM")
    say(f"{name}: {before:.1f} % before, {alone:.1f} % reported, {looked_at:.1f} % with /jobs open, {resident:.0f} MB")
    return [
        Row(f"{name}: heard", "jobs/s", (heard / began,), at_least(settings.jobs * 0.9)),
        Row(f"{name}: nobody looks, more than without", "% of a core", (alone - before,), at_most(10)),
        Row(f"{name}: /jobs is open", "% of a core", (looked_at,), at_most(25)),
        Row(f"{name}: peak resident", "MB", (resident,), at_most(300)),
    ]


def _jobs_heard(port: int) -> int:
    return sum(map(int, re.findall(rb"^nsq_job_runs_total{.*} (\d+)$", _get(port, "/metrics"), re.MULTILINE)))


def _has_jobs(port: int) -> bool:
    return b"\nnsq_job_runs_total{" in _get(port, "/metrics")


@contextmanager
def _looking(port: int, path: str) -> Iterator[None]:
    """Fetch a page every five seconds, as a browser does that shows it."""
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(5.0):
            _get(port, path)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _measured(settings: AdminSettings, folder: Path, lively: float) -> list[Row]:
    name = f"{lively:.0%} lively"
    with ExitStack() as stack:
        lookupd = stack.enter_context(_nodes(settings, lively))
        port = take_port()
        pid = stack.enter_context(_nsqadmin(port, lookupd, folder / "log"))
        wait_until(partial(_has_sampled, port, settings.topics), START_LIMIT, "nsqadmin has sampled everything", 0.5)
        pages = {path: _page_times(port, path) for path in PAGES}
        alone = processor_share(pid, settings.seconds)
        with _viewers(port, 1):
            one = processor_share(pid, settings.seconds)
        with _viewers(port, VIEWERS):
            many = processor_share(pid, settings.seconds)
        resident = resident_megabytes(pid, "VmHWM")
    say(f"{name}: {alone:.1f} % alone, {one:.1f} % with a viewer, {many:.1f} % with {VIEWERS}, {resident:.0f} MB")
    return [
        *(Row(f"{name}: GET {path}", "ms", tuple(times), at_most(1000)) for path, times in pages.items()),
        Row(f"{name}: nobody looks", "% of a core", (alone,), at_most(25)),
        Row(f"{name}: one viewer", "% of a core", (one,), at_most(25)),
        Row(f"{name}: {VIEWERS} viewers", "% of a core", (many,), at_most(30)),
        Row(f"{name}: peak resident", "MB", (resident,), at_most(300)),
    ]


@contextmanager
def _nodes(settings: AdminSettings, lively: float) -> Iterator[int]:
    command = [sys.executable, "-m", "bench.admin_nodes"]
    command += [str(it) for it in (settings.nodes, settings.topics, settings.channels, lively)]
    with started(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())


@contextmanager
def _nsqadmin(port: int, lookupd: int, log: Path) -> Iterator[int]:
    command = [sys.executable, "-m", "nsqadmin", f"--http-address={HOST}:{port}"]
    command += [f"--lookupd-http-address={HOST}:{lookupd}"]
    with running_daemon(command, Broker(port, port), log) as pid:
        yield pid


def _has_sampled(port: int, topics: int) -> bool:
    metrics = _get(port, "/metrics").decode()
    samples = re.search(r"^nsqadmin_samples_total (\d+)$", metrics, re.MULTILINE)
    return samples is not None and int(samples[1]) >= 3 and metrics.count("\nnsq_topic_depth{") >= topics


def _get(port: int, path: str) -> bytes:
    return Broker(port, port).get(path)


def _page_times(port: int, path: str) -> list[float]:
    times = []
    for _ in range(7):
        began = time.perf_counter()
        _get(port, path)
        times.append((time.perf_counter() - began) * 1000)
        time.sleep(0.1)
    return times


@contextmanager
def _viewers(port: int, count: int) -> Iterator[None]:
    """Run browsers that look at the overview and at a page of a hundred topics."""
    only = ",".join(f"topic-{number}" for number in range(100))
    with ExitStack() as stack:
        for number in range(count):
            connection = http.client.HTTPConnection(HOST, port, timeout=START_LIMIT)
            stack.callback(connection.close)
            connection.request("GET", f"/events?scope=topics&only={only}" if number % 2 else "/events?scope=overview")
            sock = connection.sock
            response = connection.getresponse()
            stack.callback(response.close)
            # Otherwise closing would wait for the reader's read, which may take until the next event.
            stack.callback(sock.shutdown, socket.SHUT_RDWR)
            reader = threading.Thread(target=_drain, args=(response,), daemon=True)
            reader.start()
        yield


def _drain(response: http.client.HTTPResponse) -> None:
    try:
        while response.read1(65536):
            pass
    except (
        OSError,
        http.client.HTTPException,
        ValueError,
        AttributeError,
    ):  # the connection was closed: this is the normal end
        pass


BENCHMARK: Final = Benchmark(
    "admin",
    "What does nsqadmin cost before a big cluster, and how long does a page take?",
    AdminSettings,
    run,
    at_most=10,
)
