"""nsqadmin with hostile registered nodes: their answers take neither its memory, nor its time, nor its token."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from io import BufferedIOBase
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.http_server import HttpServer, Reply, Request
from tests.support.json_server import JsonServer
from tests.support.process import PATIENT, Nsqadmin, eventually, needs_module

needs_module("starlette")


LIMIT = 30.0  # seconds
BOMBS = 6
MEGABYTE = 1 << 20
MOST_MEMORY = 300 * MEGABYTE
SECONDS = 8.0  # seconds of attack
PINGS = 25  # at least


class Answering(HttpServer):
    """A node that answers everything in the same way, byte by byte if there are pauses."""

    def __init__(self, body: bytes, *, headers: dict[str, str] | None = None, pause: float = 0.0) -> None:
        super().__init__()
        self.pause = pause
        self.stopped = threading.Event()
        self._answer = Reply(200, body, headers or {})

    def reply(self, request: Request) -> Reply:
        return Reply(400) if request.target == "/topic/log" else self._answer  # a 400 says that this nsqd keeps history

    def write(self, body: bytes, to: BufferedIOBase) -> None:
        if not self.pause:
            to.write(body)
            return
        for at in range(len(body)):
            to.write(body[at : at + 1])
            if self.stopped.wait(self.pause):
                return

    def __exit__(self, *error: Any) -> None:
        self.stopped.set()
        super().__exit__(*error)


@cache
def bomb() -> bytes:
    """Return 600 kB that unpack to 180 MB of JSON that an nsqd could have sent."""
    topic = json.dumps({"topic_name": "evil", "channels": [{"channel_name": "c", "clients": []}]}) + ","
    return gzip.compress(b'{"topics":[' + topic.encode() * (180_000_000 // len(topic)) + b"{}]}", 9)


def packed() -> Answering:
    return Answering(bomb(), headers={"Content-Encoding": "gzip"})


def lookupd_of(*nodes: HttpServer, topics: int = 1) -> JsonServer:
    """List each node, as if it had registered."""
    names = ["evil", *(f"topic-{it}" for it in range(1, topics))]

    def answer(path: str, arguments: dict[str, str]) -> Any:
        producers = [
            {
                "hostname": f"node-{number}",
                "broadcast_address": "127.0.0.1",
                "tcp_port": 4150 + number,
                "http_port": node.port,
                "version": "1.3.0",
                "remote_address": f"127.0.0.1:{number}",
                "topics": names,
                "tombstones": [False] * len(names),
            }
            for number, node in enumerate(nodes)
        ]
        known = {"/nodes": {"producers": producers}, "/lookup": {"producers": producers}, "/topics": {"topics": names}}
        return known.get(path, {"version": "1.3.0", "channels": []})

    return JsonServer(answer)


@contextmanager
def watched(*nodes: HttpServer, options: tuple[str, ...] = ()) -> Iterator[Nsqadmin]:
    with ExitStack() as stack:
        for node in nodes:
            stack.enter_context(node)
        lookupd = stack.enter_context(lookupd_of(*nodes))
        named = f"lookupd-http-address={lookupd.address}"
        admin = stack.enter_context(Nsqadmin(named, "sample-interval=1s", "discovery-interval=1s", *options))
        yield admin
        assert "Traceback" not in admin.log


def pings(admin: Nsqadmin, attacked: Callable[[], bool]) -> list[float]:
    """Ping until `attacked()`, and return how long each ping took, sorted."""
    took: list[float] = []
    end = time.monotonic() + 2 * LIMIT
    while len(took) < PINGS or not attacked():
        assert time.monotonic() < end, "nobody is attacked"
        began = time.monotonic()
        assert admin.http("GET", "/ping", timeout=LIMIT).status == 200
        took.append(time.monotonic() - began)
        time.sleep(0.02)  # a moderate rate
    return sorted(took)


def peak(admin: Nsqadmin) -> int:
    status = Path(f"/proc/{admin.pid}/status").read_text()
    (line,) = [it for it in status.splitlines() if it.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def processor_seconds(admin: Nsqadmin) -> float:
    fields = Path(f"/proc/{admin.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def nodes_of(admin: Nsqadmin) -> dict[int, dict[str, Any]]:
    """Return the API's nodes by HTTP port."""
    answer = admin.http("GET", "/api/v2/nodes", timeout=2 * LIMIT)
    return {it["http_port"]: it for it in answer.json["nodes"]}


def honest() -> JsonServer:
    one = {"topic_name": "evil", "channels": [{"channel_name": "c", "depth": 7, "clients": []}]}
    stats = {"version": "1.3.0", "health": "OK", "start_time": 1, "topics": [one]}
    return JsonServer(lambda path, arguments: stats if path == "/stats" else (404, "{}"))


def test_six_bombs_that_nobody_looks_at() -> None:
    hostile, good = [packed() for _ in range(BOMBS)], honest()
    assert len(bomb()) < 700_000
    with watched(*hostile, good, options=(PATIENT,)) as admin:
        end = time.monotonic() + SECONDS
        took = pings(admin, lambda: time.monotonic() > end)
        used, memory, asked = processor_seconds(admin), peak(admin), max(map(times_asked, hostile))
        p99 = took[int(len(took) * 0.99)]
        print(f"/ping p50 {took[len(took) // 2]:.3f} s, p99 {p99:.3f} s, most {took[-1]:.3f} s, {len(took)} times")
        print(f"peak {memory / MEGABYTE:.0f} MB, {used:.1f} s of the processor in {SECONDS:.0f} s with the start")
        assert took[-1] < LIMIT
        assert used < SECONDS / 2  # reading 180 MB six times would take more, each second again
        assert memory < MOST_MEMORY
        assert asked <= 2  # without a pause it would be once each second

        eventually(lambda: all("its answer " in nodes_of(admin)[node.port]["not_read"] for node in hostile), LIMIT)
        found = nodes_of(admin)
        assert found[good.port]["health"] == "ok"
        assert found[good.port]["depth"] == 7
        for node in hostile:
            shown = found[node.port]
            assert shown["health"] == "never reached"
            assert "--max-answer-size" in shown["explanation"]
            assert f"{shown['address']} is not read: its answer" in findings(admin)
            page = admin.http("GET", f"/nodes/{quote(shown['address'], safe='')}", timeout=LIMIT)
            assert b"is not read: its answer" in page.body
        assert min(map(times_asked, hostile)) >= 1


def times_asked(node: Answering) -> int:
    return sum(it.target.startswith("/stats") for it in node.requests)


def findings(admin: Nsqadmin) -> str:
    return admin.http("GET", "/api/v2/diagnose", timeout=LIMIT).body.decode()


@pytest.mark.parametrize(
    "path", ["/api/topics/evil", "/api/topics/evil/c", "/api/counter", "/api/nodes", "/topics/evil?fresh=1"]
)
def test_who_asks_for_what_they_have_gets_the_others(path: str) -> None:
    good = honest()
    with watched(*(packed() for _ in range(BOMBS)), good, options=(PATIENT,)) as admin:
        answers: list[int] = []

        def ask() -> None:
            answers.append(admin.http("GET", path, timeout=LIMIT).status)

        asking = threading.Thread(target=ask)
        asking.start()
        took = pings(admin, lambda: not asking.is_alive())
        assert answers == [200]
        assert took[-1] < LIMIT, took[-5:]
        assert peak(admin) < MOST_MEMORY
        if path.startswith("/api/topics/"):
            document = admin.http("GET", path, timeout=LIMIT).json
            assert good.address in json.dumps(document["nodes"])
            assert "its answer" in document["message"]


def test_answers_that_come_byte_by_byte_hold_nobody_up() -> None:
    dripping = [Answering(b'{"topics":[' + b" " * 10_000, pause=0.05) for _ in range(20)]
    good = honest()
    with watched(*dripping, good, options=("http-client-request-timeout=1s",)) as admin:
        eventually(lambda: good.port in nodes_of(admin) and nodes_of(admin)[good.port]["health"] == "ok", LIMIT)
        before = [times_asked(node) for node in dripping]
        again = pings(
            admin, lambda: all(now > then for now, then in zip(map(times_asked, dripping), before, strict=True))
        )
        assert again[-1] < LIMIT
        shown = nodes_of(admin)
        assert shown[good.port]["health"] == "ok"
        assert all(shown[node.port]["health"] == "never reached" for node in dripping)


@pytest.mark.parametrize("element", [b"{},", b"[],", b"0,", b'"\\ud800",', b'{"topic_name":"t"},'])
def test_answers_just_below_the_bounds_hold_nobody_up(element: bytes) -> None:
    """Each answer is small enough to be read, and takes as long as possible: 1,000 kB of nothing but values."""
    body = b'{"topics":[' + element * (MEGABYTE // len(element)) + b"0]}"
    hostile = [Answering(body) for _ in range(2)]
    with watched(*hostile, honest()) as admin:
        took = pings(admin, lambda: min(map(times_asked, hostile)) >= 1)
        took = sorted(took + pings(admin, lambda: True))  # while the answers are read
        print(f"{element!r}: /ping p99 {took[int(len(took) * 0.99)]:.3f} s, peak {peak(admin) / MEGABYTE:.0f} MB")
        assert took[int(len(took) * 0.99)] < LIMIT
        assert peak(admin) < MOST_MEMORY / 2


def test_of_more_nodes_than_are_taken_the_others_are_counted() -> None:
    with watched(*(honest() for _ in range(5)), options=("max-nodes=3",)) as admin:
        eventually(lambda: len(nodes_of(admin)) == 3, LIMIT)
        assert "lists more than is shown" in findings(admin)
        assert "--max-nodes" in admin.http("GET", "/api/nodes", timeout=LIMIT).json["message"]


def test_who_registers_is_not_shown_the_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("the-token\n")
    body = json.dumps({"version": "1.3.0", "health": "OK", "topics": []}).encode()
    unknown = Answering(body)
    with watched(unknown, options=(f"nsqd-token-file={token}",)) as admin:
        eventually(lambda: times_asked(unknown) >= 3 and nodes_of(admin), LIMIT)
        (shown,) = nodes_of(admin).values()
        assert shown["token_withheld"] == "it is not on --nsqd-token-to"
        assert f"{shown['address']} is asked without the token" in findings(admin)
        page = admin.http("GET", f"/nodes/{quote(shown['address'], safe='')}", timeout=LIMIT)
        assert b"not sent to it: it is not on --nsqd-token-to" in page.body
    assert {it.headers.get("authorization") for it in unknown.requests} == {None}

    listed = Answering(body)
    with watched(listed, options=(f"nsqd-token-file={token}", "nsqd-token-to=127.0.0.0/8")) as admin:
        eventually(lambda: len(listed.requests) >= 3 and nodes_of(admin), LIMIT)
        (shown,) = nodes_of(admin).values()
        assert shown["token_withheld"] == ""
    assert {it.headers.get("authorization") for it in listed.requests} == {"Bearer the-token"}
