"""A cluster that is hard to lay out: five nodes, of which two may fall silent, and everything with the longest name it may have.

The nodes are real. nsqadmin runs in a thread of the tests, with a resolver that knows the nodes' host names.
"""

from __future__ import annotations

import http.client
import json
import socket
import string
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from nsqcommon.wire.extensions import bury
from tests.support.process import Answer, Nsqd, Nsqlookupd, eventually

# As long as names may be: one in which no line can be broken well, and one that people would choose.
SOLID: Final = (string.ascii_lowercase * 3)[:64]
LONG: Final = "tenant-00017.eu-central-1.checkout-and-billing.order-events.v2_b"
CHANNEL: Final = "warehouse-loader.of-the-second-region.with-retries-and-audit_v12"
QUIET: Final = "a"  # a short one between the others
REASON: Final = "ValueError: " + "the-address-of-the-customer-cannot-be-geocoded/" * 2 + " (attempt 3 of 3)"
HOST: Final = "worker-0017-of-the-fulfilment-fleet.rack-12.prod.eu-central-1.compute.internal.example.com"
AGENT: Final = "shop-fulfilment-and-notification-service/2026.11.29-rc1+build.8871 go-nsq/1.1.0"
COUNT: Final = 5
_POLICY: Final = f"""
[[policy]]
topic = "{LONG}"
channel = "{CHANNEL}"
max_attempts = 1

[[policy]]
topic = "{SOLID}"
channel = "*"
order = "group"
max_held = 40
"""


def host_of(number: int) -> str:
    return f"broker-{number:04}-of-the-second-availability-zone.prod.eu-central-1.compute.internal.example.com"


class LocalNames(trio.abc.HostnameResolver):
    """Resolves every name to this machine."""

    async def getaddrinfo(
        self,
        host: bytes | None,
        port: bytes | str | int | None,
        family: int = 0,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> list[Any]:
        return socket.getaddrinfo("127.0.0.1", port, family, type, proto, flags)

    async def getnameinfo(self, sockaddr: tuple[str, int] | tuple[str, int, int, int], flags: int) -> tuple[str, str]:
        return socket.getnameinfo(sockaddr, flags)


class ThreadedAdmin:
    """nsqadmin in a thread of this process. Its nodes' names are resolved by `LocalNames`."""

    def __init__(self, *options: str) -> None:
        self._options = options
        self._thread = threading.Thread(target=self._run)
        self._started = threading.Event()
        self._stop = trio.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._failure: BaseException | None = None
        self.http_address: tuple[str, int] = ("", 0)

    def __enter__(self) -> ThreadedAdmin:
        self._thread.start()
        self._started.wait(60)
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        if self._token is not None and self._failure is None:
            trio.from_thread.run_sync(self._stop.set, trio_token=self._token)
        self._thread.join()
        assert self._failure is None

    def http(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection(*self.http_address, timeout=60)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): it for name, it in headers.items()})
            answer = connection.getresponse()
            return Answer(answer.status, {name.lower(): it for name, it in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def text(self, path: str) -> str:
        answer = self.http("GET", path)
        assert answer.status == 200, (path, answer)
        return answer.body.decode()

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as failure:  # handed to the thread of the tests
            self._failure = failure
        finally:
            self._started.set()

    async def _serve(self) -> None:
        from nsqadmin import daemon
        from nsqadmin.options import Options
        from nsqcommon.options import parse

        trio.socket.set_custom_hostname_resolver(LocalNames())
        flags = ["--http-address=127.0.0.1:0", *(f"--{it}" for it in self._options)]
        options = parse(Options, flags, {}, "nsqadmin")
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as nursery:
            listener = await nursery.start(partial(daemon.run, options, wait_for_shutdown=self._stop.wait))
            self.http_address = listener.getsockname()
            self._started.set()


@dataclass
class Wide:
    nodes: list[Nsqd]
    admin: ThreadedAdmin

    def silence(self) -> None:
        """Kill two nodes, and wait until nsqadmin has noticed."""
        for node in self.nodes[-2:]:
            node.kill()
        eventually(lambda: len(json.loads(self.admin.text("/api/v2/health"))["silent"]) == 2)


@contextmanager
def wide_cluster(folder: Path, *, count: int = COUNT, is_filled: bool = True) -> Iterator[Wide]:
    """Run the nodes and nsqadmin. `is_filled=False`: nothing was ever published."""
    policy = folder / "policy.toml"
    policy.write_text(_POLICY)
    with ExitStack() as stack:
        lookupd = stack.enter_context(Nsqlookupd())
        told = f"lookupd-tcp-address=127.0.0.1:{lookupd.tcp[1]}"
        nodes = [
            stack.enter_context(
                Nsqd(
                    folder / f"n{number}",
                    told,
                    f"broadcast-address={host_of(number)}",
                    "retention-bytes=1GB",
                    *([f"policy-file={policy}"] if is_filled else ()),
                )
            )
            for number in range(count)
        ]
        for number, node in enumerate(nodes if is_filled else ()):
            _fill(node, number)
        if is_filled:
            lookupd.post(f"/channel/create?topic={LONG[::-1]}&channel={CHANNEL}")  # a name that no node has
        admin = stack.enter_context(
            ThreadedAdmin(
                f"lookupd-http-address=127.0.0.1:{lookupd.http_address[1]}",
                "sample-interval=500ms",
                "discovery-interval=500ms",
                "http-client-request-timeout=2s",
                "enable-publish",
            )
        )
        eventually(lambda: _is_known(admin, count, is_filled=is_filled))
        yield Wide(nodes, admin)


def _is_known(admin: ThreadedAdmin, count: int, *, is_filled: bool) -> bool:
    if f"{count} of {count}" not in admin.text("/"):
        return False
    names = ((LONG, CHANNEL), (SOLID, SOLID), (QUIET, QUIET)) if is_filled else ()
    channels = [admin.http("GET", f"/api/v2/topics/{topic}/{channel}") for topic, channel in names]
    return all(it.status == 200 and len(it.json["nodes"]) == count for it in channels)


def _fill(node: Nsqd, number: int) -> None:
    for topic, channel in ((LONG, CHANNEL), (LONG, QUIET), (SOLID, SOLID), (SOLID, CHANNEL), (QUIET, QUIET)):
        node.post(f"/topic/create?topic={topic}")
        node.post(f"/channel/create?topic={topic}&channel={channel}")
    node.post(f"/pub?topic={SOLID[::-1]}", b"waits for a channel")
    for at in range(3):
        body = json.dumps({"order_id": number * 100 + at, "customer": {"country": "DE", "note": SOLID * 2}}).encode()
        job = {"Nsq-Header-job-name": f"shop.fulfilment.tasks.{CHANNEL}", "Nsq-Header-job-id": SOLID}
        later = f"&defer={(at + 9) * 60_000}&key={CHANNEL[:60]}-{number}-{at}"
        for target, headers in (
            (LONG, {**job, "Nsq-Header-region": LONG}),
            (LONG + later, job),
            (SOLID, {"Nsq-Header-nsq-group": f"{LONG}-{at}"}),
        ):
            assert node.http("POST", f"/pub?topic={target}", body, headers=headers).status == 200
    node.post(f"/channel/pause?topic={SOLID}&channel={CHANNEL}")
    producer = node.connect()
    producer.identify(client_id=f"{HOST}-1", hostname=HOST, user_agent=AGENT)
    producer.publish(QUIET, b"\x00\x01\xff binary", b"text")
    for topic, channel in ((LONG, CHANNEL), (SOLID, SOLID)):
        consumer = node.connect()
        consumer.identify(
            client_id=f"{HOST}-{number}",
            hostname=HOST,
            user_agent=AGENT,
            msg_timeout=600_000,
            feature_negotiation=True,
            extensions=["bury"],
        )
        consumer.subscribe(topic, channel, ready=2)
        first, _ = consumer.messages(2)  # the second stays in flight
        consumer.send(bury(first.id, REASON))
    eventually(lambda: (node.channel(LONG, CHANNEL) or {}).get("buried_count"))
    position = {
        "name": f"nsqpipe land {HOST}",
        "log": node.http("GET", f"/topic/log?topic={LONG}").json["log"],
        "sequence": 1,
        "into": f"s3://lake/{LONG}",
        "format": "parquet",
        "host": HOST,
    }
    node.post(f"/topic/reader?topic={LONG}", json.dumps(position).encode())
