"""A node that hangs or dies makes nothing look better: not the sums, not the verdicts, not the pages."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import name_of
from tests.support.process import PATIENT, Nsqadmin, Nsqd, Nsqlookupd, eventually, needs_module

needs_module("starlette")


SEVERITIES = ["problem", "warning", "info"]


@dataclass
class Three:
    """Three nodes, each with 100 orders that nobody bills; the third alone has 50 letters."""

    nodes: list[Nsqd]
    lookupd: Nsqlookupd
    options: list[str]

    @property
    def third(self) -> Nsqd:
        return self.nodes[2]


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Three]:
    with ExitStack() as stack:
        lookupd = stack.enter_context(Nsqlookupd())
        options = ["broadcast-address=127.0.0.1", f"lookupd-tcp-address=127.0.0.1:{lookupd.tcp[1]}"]
        nodes = [stack.enter_context(Nsqd(tmp_path / name, *options)) for name in ("n1", "n2", "n3")]
        for node in nodes:
            publish(node, "orders", "billing", 100)
        publish(nodes[2], "letters", "post", 50)
        eventually(lambda: len(lookupd.producers("orders")) == 3 and len(lookupd.producers("letters")) == 1)
        yield Three(nodes, lookupd, [f"lookupd-http-address=127.0.0.1:{lookupd.http_address[1]}"])


def publish(node: Nsqd, topic: str, channel: str, count: int) -> None:
    node.post(f"/topic/create?topic={topic}")
    node.post(f"/channel/create?topic={topic}&channel={channel}")
    node.post(f"/mpub?topic={topic}", b"\n".join(b"%d" % number for number in range(count)))


@contextmanager
def watching(three: Three, *options: str) -> Iterator[Nsqadmin]:
    quick = ("sample-interval=300ms", "discovery-interval=300ms")
    with Nsqadmin(*three.options, *quick, *options) as admin:
        yield admin
        assert "Traceback" not in admin.log


def health(admin: Nsqadmin) -> Any:
    return admin.json("GET", "/api/v2/health").json


def wait_for_depth(admin: Nsqadmin, depth: int) -> None:
    eventually(lambda: health(admin)["totals"]["depth"] == depth)


def worst(admin: Nsqadmin) -> dict[tuple[str, str, str], int]:
    findings = admin.json("GET", "/api/v2/diagnose").json["findings"]
    return {
        (it["rule"], it["topic"], it["channel"]): SEVERITIES.index(it["severity"]) for it in findings if it["topic"]
    }


def text_of(admin: Nsqadmin, path: str) -> str:
    answer = admin.http("GET", path)
    assert answer.status == 200, path
    return answer.body.decode()


def test_a_node_that_hangs_makes_no_sum_fall_and_no_verdict_better(three: Three) -> None:
    address = name_of(three.third)
    with watching(three, "http-client-request-timeout=5s") as admin:
        wait_for_depth(admin, 350)
        before, findings = health(admin), worst(admin)
        three.third.send_signal(signal.SIGSTOP)
        try:
            eventually(lambda: health(admin)["silent"])
            publish(three.nodes[0], "orders", "billing", 10)
            wait_for_depth(admin, 360)
            after = health(admin)
            (silent,) = after["silent"]
            assert (silent["node"], silent["depth"]) == (address, 150)
            assert after["problems"] >= before["problems"]
            now = worst(admin)
            assert all(now[key] <= severity for key, severity in findings.items())
            channel = admin.json("GET", "/api/v2/topics/orders/billing").json
            assert (channel["depth"], channel["silent"]) == (310, [address])
            assert channel["oldest_is_older"] is False  # the messages tell their age, though nsqadmin came later
            metrics = text_of(admin, "/metrics")
            assert "nsq_nodes_silent 1" in metrics
            assert f'nsq_node_silent_messages{{node="{address}"}} 150' in metrics
            assert 'nsq_channel_silent_nodes{topic="orders",channel="billing"} 1' in metrics

            overview = text_of(admin, "/")
            assert "150 of them last known" in overview
            assert overview.count("does not answer") == 1
            nodes = text_of(admin, "/nodes")
            assert f"</a> · {address}" not in nodes  # the address is not said twice
            assert nodes.count("Forget node…") == 1
            page = text_of(admin, "/topics/orders/billing")
            assert f">{address}</a> does not answer: 100 messages, last seen" in page
            assert "keeps up" not in page
            lonely = text_of(admin, "/topics/letters/post")
            assert f">{address}</a> does not answer: 50 messages, last seen" in lonely
            series = admin.json("GET", "/api/v2/series?key=channel:orders/billing").json
            assert (series["values"]["depth"][-1], series["last_known"]["depth"][-1]) == (310.0, 100.0)
            assert "last known" in page.partition('class="charts')[2]
            dialog = text_of(admin, "/actions/delete_topic?topic=orders")
            assert f"{address} does not answer. It is asked anyway" in dialog
            assert "100 messages of this when it last answered" in dialog
            drain = text_of(admin, f"/nodes/drain?node={address}")
            assert "Safe to stop now: unknown." in drain
            assert "It does not answer; when it last did, " in drain
            assert "It accepts messages" not in drain
        finally:
            three.third.send_signal(signal.SIGCONT)
        eventually(lambda: not health(admin)["silent"])
        assert health(admin)["totals"]["depth"] == 360
        back = admin.json("GET", "/api/v2/topics/orders/billing").json
        assert back["oldest_age"] >= channel["oldest_age"]


def test_a_dead_node_is_shown_with_what_it_had_until_a_person_forgets_it(three: Three, tmp_path: Path) -> None:
    address, history = name_of(three.third), f"history-file={tmp_path / 'history'}"
    with watching(three, PATIENT, history) as admin:
        wait_for_depth(admin, 350)
        three.third.kill()
        eventually(lambda: health(admin)["silent"])
        assert admin.stop() == 0
    with watching(three, PATIENT, history) as admin:
        wait_for_depth(admin, 350)
        eventually(lambda: [it["node"] for it in health(admin)["silent"]] == [address])
        assert f">{address}</a> does not answer: 50 messages, last seen" in text_of(admin, "/topics/letters")
        assert "50 messages of this when it last answered" in text_of(admin, "/actions/delete_topic?topic=letters")
        assert "50 messages of this when it last answered" in text_of(
            admin, "/actions/create_channel?topic=letters&channel=post&node="
        )
        assert text_of(admin, f"/nodes/{address}").count("No answer since") == 1

        asked = text_of(admin, f"/nodes/forget?node={address}")
        assert "no longer show 150 messages of 2 topics" in asked
        assert "50 messages; no other node has this topic" in asked
        alive = name_of(three.nodes[0])
        assert admin.http("GET", f"/nodes/forget?node={alive}").status == 409
        form = {"content-type": "application/x-www-form-urlencoded"}
        assert admin.http("POST", "/nodes/forget", f"node={alive}".encode(), headers=form).status == 409
        assert admin.http("POST", "/nodes/forget", f"node={address}".encode(), headers=form).status == 200
        wait_for_depth(admin, 200)
        assert health(admin)["silent"] == []
        (entry,) = admin.json("GET", "/api/v2/activity?kind=action").json["activity"]
        assert (entry["what"], entry["nodes"], entry["result"]) == ("forget_node", [address], "ok")

        three.third.start()
        wait_for_depth(admin, 350)


def test_a_node_that_retires_by_a_drain_is_forgotten_by_itself(three: Three) -> None:
    with watching(three, PATIENT) as admin:
        wait_for_depth(admin, 350)
        three.third.post("/drain?stay=0s&retire=true")
        eventually(lambda: len(admin.json("GET", "/api/v2/nodes").json["nodes"]) == 2, 60)
        assert health(admin)["silent"] == []


def test_first_steps_are_not_shown_in_an_outage() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with Nsqadmin(f"lookupd-http-address={address}", "sample-interval=300ms") as admin:
            eventually(lambda: f"reach nsqlookupd {address}" in text_of(admin, "/"))
            assert "Nothing listens at" in text_of(admin, "/")


def test_the_tcp_port_of_nsqlookupd_by_mistake_is_named_on_the_page_and_once_in_the_log() -> None:
    with Nsqlookupd() as lookupd:
        address = f"127.0.0.1:{lookupd.tcp[1]}"
        with Nsqadmin(f"lookupd-http-address={address}", "sample-interval=300ms") as admin:
            eventually(lambda: f"{address} is probably its TCP port" in text_of(admin, "/"))
            eventually(lambda: admin.json("GET", "/api/v2/health").json["index"] > 5)
            (line,) = [line for line in admin.log.splitlines() if "does not answer" in line]
            assert f"{address} does not answer: It does not speak HTTP" in line
            assert "Start a broker" not in text_of(admin, "/")
