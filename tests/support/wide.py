"""A cluster that is hard to lay out: five nodes, of which two may fall silent, and everything with the longest name it may have.

The nodes are real, and so is nsqadmin, but for its resolver: it finds the nodes' long host names on this machine.
"""

from __future__ import annotations

import json
import string
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nsqcommon.wire.extensions import bury
from tests.support.process import PATIENT, START_TIMEOUT, Nsqadmin, Nsqd, Nsqlookupd, eventually

# As long as names may be: one in which no line can be broken well, and one that people would choose.
SOLID: Final = (string.ascii_lowercase * 3)[:64]
LONG: Final = "tenant-00017.eu-central-1.checkout-and-billing.order-events.v2_b"
CHANNEL: Final = "warehouse-loader.of-the-second-region.with-retries-and-audit_v12"
QUIET: Final = "a"  # a short one between the others
REASON: Final = "ValueError: " + "the-address-of-the-customer-cannot-be-geocoded/" * 2 + " (attempt 3 of 3)"
HOST: Final = "worker-0017-of-the-fulfilment-fleet.rack-12.prod.eu-central-1.compute.internal.example.com"
AGENT: Final = "shop-fulfilment-and-notification-service/2026.11.29-rc1+build.8871 go-nsq/1.1.0"
COUNT: Final = 5
TABS: Final = ("consumers", "nodes", "messages", "deferred", "buried", "groups", "policy")
# Where a crawl begins: also at tabs without content, to which no page links.
STARTS: Final = (
    "/",
    f"/topics/{LONG}",
    f"/topics/{SOLID}/{SOLID}?tab=groups",
    *(f"/topics/{topic}/{name}?tab={tab}" for topic, name in ((LONG, CHANNEL), (QUIET, QUIET)) for tab in TABS),
    f"/actions/several?do=delete&pick={LONG}&pick={LONG}/{CHANNEL}&pick={SOLID}/{SOLID}",
    "/topics/nope",
    "/nope",
)
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


# Nobody answers heartbeats, and nsqd would close the connections before a busy machine has shown all pages.
_STAYS: Final = {"heartbeat_interval": 3_600_000}


def host_of(number: int) -> str:
    return f"broker-{number:04}-of-the-second-availability-zone.prod.eu-central-1.compute.internal.example.com"


class WideAdmin(Nsqadmin):
    """An nsqadmin that finds every name on this machine."""

    program = "tests.support.wide_admin"

    def html(self, path: str) -> str:
        """Return the page at `path`; "" if there is something else than a page."""
        answer = self.http("GET", path)
        assert answer.status < 500, (path, answer)
        return answer.body.decode() if answer.headers.get("content-type", "").startswith("text/html") else ""


@dataclass
class Wide:
    nodes: list[Nsqd]
    admin: WideAdmin

    def silence(self) -> None:
        """Kill two nodes, and wait until nsqadmin has noticed."""
        for node in self.nodes[-2:]:
            node.kill()
        eventually(lambda: len(self.admin.json("GET", "/api/v2/health").json["silent"]) == 2)


@contextmanager
def wide_cluster(
    folder: Path, *, count: int = COUNT, is_filled: bool = True, sample_interval: str = "500ms"
) -> Iterator[Wide]:
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
                    "max-heartbeat-interval=1h",
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
            WideAdmin(
                f"lookupd-http-address=127.0.0.1:{lookupd.http_address[1]}",
                f"sample-interval={sample_interval}",
                "discovery-interval=500ms",
                PATIENT,
                "enable-publish",
            )
        )
        eventually(lambda: _is_known(admin, count, is_filled=is_filled), START_TIMEOUT)
        yield Wide(nodes, admin)


def _is_known(admin: WideAdmin, count: int, *, is_filled: bool) -> bool:
    if f"{count} of {count}" not in admin.html("/"):
        return False
    names = ((LONG, CHANNEL), (SOLID, SOLID), (QUIET, QUIET)) if is_filled else ()
    channels = [admin.http("GET", f"/api/v2/topics/{topic}/{channel}") for topic, channel in names]
    if not all(it.status == 200 and len(it.json["nodes"]) == count for it in channels):
        return False
    # Looking at them makes nsqadmin ask for their readers and consumers.
    return not is_filled or ("nsqpipe land" in admin.html(f"/topics/{LONG}") and HOST in admin.html("/consumers"))


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
    producer.identify(client_id=f"{HOST}-1", hostname=HOST, user_agent=AGENT, **_STAYS)
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
            **_STAYS,
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
