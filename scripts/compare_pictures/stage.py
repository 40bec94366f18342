"""The cluster that both checkouts show, with a bit of everything, and their nsqadmins."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nsqadmin.cluster.recording import encode
from nsqclient import sync
from nsqcommon.wire.extensions import bury
from scripts.compare_pictures.recorder import Recorder
from tests.browser.demo import demo
from tests.support.process import Nsqadmin, Nsqd, Nsqlookupd, eventually
from tests.support.tools import address

COUNT: Final = 12  # of most things, on each node
POLICY: Final = """
[[policy]]
channel = "mail"
max_attempts = 1

[[policy]]
channel = "fax"
max_messages = 3
overflow = "drop-oldest"

[[policy]]
topic = "orders"
max_messages = 2
dry_run = true
"""
ROLES: Final = """
[[role]]
name = "on call"
users = ["ana"]
can = ["payload", "operator"]
topics = ["orders*"]

[[role]]
name = "everybody"
users = ["*"]
can = ["viewer"]
"""
ACCOUNTS: Final = (
    "ana:scrypt$16384$8$1$AAAAAAAAAAAAAAAAAAAAAA==$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n"  # nobody's password
)
_STILL: Final = Path(__file__).with_name("still_nsqadmin.py")
_NEVER: Final = "24h"  # nsqadmin polls each node once, and again after each action


@dataclass(frozen=True, slots=True)
class Stage:
    """The cluster: files, addresses and the time for both nsqadmins."""

    folder: Path
    recorders: tuple[Recorder, ...]  # of nsqlookupd, and of each node
    empty: Recorder  # of an nsqlookupd that knows no node
    now: float

    def turn(self, side: int) -> None:
        """Set whose nsqadmin is asking now."""
        for recorder in (*self.recorders, self.empty):
            recorder.side = side

    @property
    def options(self) -> tuple[str, ...]:
        lookupd = self.recorders[0]
        files = f"pipeline-results={self.folder / 'results.json'}"
        return f"lookupd-http-address={lookupd.address}", "enable-publish", files

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(it.address for it in self.recorders[1:])


@contextmanager
def open_stage(folder: Path) -> Iterator[Stage]:
    (folder / "policy.toml").write_text(POLICY)
    (folder / "roles.toml").write_text(ROLES)
    (folder / "accounts").write_text(ACCOUNTS)
    (folder / "demo.json").write_bytes(encode(demo()))
    with ExitStack() as stack:
        lookupd, empty = (stack.enter_context(Nsqlookupd()) for _ in range(2))
        recorders = tuple(stack.enter_context(Recorder(name)) for name in ("nsqlookupd", "nsqd-1", "nsqd-2"))
        recorders[0].upstream = lookupd.http_address
        empty_recorder = stack.enter_context(Recorder("empty nsqlookupd"))
        empty_recorder.upstream = empty.http_address
        for recorder in recorders[1:]:
            options = (
                "broadcast-address=127.0.0.1",
                f"broadcast-http-port={recorder.port}",
                f"lookupd-tcp-address=127.0.0.1:{lookupd.tcp[1]}",
                f"policy-file={folder / 'policy.toml'}",
                "retention-time=24h",
                "max-defer-timeout=24h",
            )
            node = stack.enter_context(Nsqd(folder / recorder.name, *options))
            recorder.upstream = node.http_address
            _fill(node)
        eventually(lambda: len(lookupd.producers("letters")) == 2)
        now = time.time()
        (folder / "results.json").write_text(_pipeline_results(now))
        for recorder in (*recorders, empty_recorder):
            recorder.now = now
        yield Stage(folder, recorders, empty_recorder, now)


def _fill(node: Nsqd) -> None:
    for topic, channels in {
        "letters": ("mail", "fax"),
        "reminders": ("desk",),
        "mails": ("jobs",),
        "orders": (),
    }.items():
        node.post(f"/topic/create?topic={topic}")
        for channel in channels:
            node.post(f"/channel/create?topic={topic}&channel={channel}")
    node.connect().publish("orders", *(b'{"number":%d,"item":"kettle","price":94.5}' % it for it in range(COUNT)))
    _bury_letters(node)
    _queue_jobs(node)
    for number in range(COUNT):
        node.post(f"/pub?topic=reminders&defer={3_600_000 + 60_000 * number}", b'{"reminder":%d}' % number)
    for name in ("desk-01", "desk-02"):
        # It doesn't answer heartbeats, so the node disconnects it after two minutes, when its pictures are taken.
        waiting = node.connect()
        waiting.identify(
            client_id=name, hostname=f"{name}.example", user_agent="go-nsq/1.1.0", heartbeat_interval=60_000
        )
        waiting.subscribe("reminders", "desk", ready=5)
    node.post("/channel/pause?topic=letters&channel=fax")


def _bury_letters(node: Nsqd) -> None:
    node.connect().publish("letters", b"<script>alert(1)</script>", *(b'{"letter":%d}' % it for it in range(COUNT - 1)))
    with node.connect() as client:
        client.identify(
            client_id="mailer-1", hostname="mailer-1.example", feature_negotiation=True, extensions=["bury"]
        )
        client.subscribe("letters", "mail", ready=COUNT)
        for number, message in enumerate(client.messages(COUNT)):
            client.send(bury(message.id, "mailbox full") if number % 3 else b"REQ %b 0\n" % message.id)
        eventually(lambda: node.channel("letters", "mail")["buried_count"] == COUNT)


def _queue_jobs(node: Nsqd) -> None:
    with sync.producer(address(node.tcp)) as producer:
        for number, name in enumerate(("shop.send", "shop.fails", "shop.later")):
            job = {
                "job-library": "celery",
                "job-name": name,
                "job-id": f"id-{number}",
                "job-retries": "1",
                "tenant": "eu",
            }
            delay = 3600.0 if name == "shop.later" else None
            producer.publish("mails", b'{"args": [%d]}' % number, headers=job, delay=delay)
    with node.connect() as client:
        client.identify(client_id="worker-1", feature_negotiation=True, extensions=["bury"])
        client.subscribe("mails", "jobs", ready=1)
        client.send(bury(client.message().id, "ValueError in shop.send"))
        eventually(lambda: node.channel("mails", "jobs")["buried_count"] == 1)


def _pipeline_results(now: float) -> str:
    def window(number: int) -> dict[str, object]:
        start = time.strftime("%Y-%m-%dT%H:%M:00Z", time.gmtime(now - 60 * (30 - number)))
        sizes = dict.fromkeys(("size_p50", "size_p95", "size_p99"), 40 + number)
        return {"start": start, "messages": 60 * number, "rate": number, "bytes": 600 * number, **sizes}

    return json.dumps(
        {"v": 1, "window_seconds": 60, "updated": window(29)["start"], "topics": {"orders": [*map(window, range(30))]}}
    )


@contextmanager
def nsqadmin_of(tree: Path, *options: str, now: float) -> Iterator[str]:
    """Run a checkout's nsqadmin with a clock that stands still, and return its URL."""
    admin = Nsqadmin(
        f"sample-interval={_NEVER}",
        f"discovery-interval={_NEVER}",
        *options,
        environ={
            "PYTHONPATH": os.pathsep.join((str(tree), str(tree / "common"))),
            "PYTHONHASHSEED": "0",
            "STILL_AT": repr(now),
            "TZ": "UTC",
        },
    )
    admin.command = (sys.executable, "-P", str(_STILL))
    with admin:
        eventually(lambda: admin.http("GET", "/healthz").status == 200)  # it has asked the nodes
        yield f"http://127.0.0.1:{admin.http_address[1]}"
