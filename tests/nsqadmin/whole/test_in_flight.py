"""Messages in flight in nsqadmin: of two real nodes, a Go nsqd, and one that hangs; for users with fewer rights, too."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from nsqcommon.wire.commands import touch
from nsqcommon.wire.message import Message
from tests.support.client import Client
from tests.support.cluster import name_of
from tests.support.json_server import JsonServer
from tests.support.process import Nsqadmin, Nsqd, eventually, needs_module

needs_module("starlette")
needs_module("jinja2")

TAB = "/topics/t/c?tab=inflight"
ROLES = """
[[role]]
name = "all"
users = ["admin"]
can = ["admin", "payload"]

[[role]]
name = "viewer"
users = ["viewer"]
can = ["viewer"]
topics = ["t"]
"""
HTML = "<b>&é"
# While the tests run, no message times out, and no worker loses its connection because it answers no heartbeat.
NODE = ("broadcast-address=127.0.0.1", "max-msg-timeout=5h", "max-heartbeat-interval=1h")
PATIENCE = ("http-client-connect-timeout=60s", "http-client-request-timeout=60s")  # of nsqadmin, where no node hangs
PATIENT = {"msg_timeout": 18_000_000, "heartbeat_interval": 3_600_000}


@dataclass
class Working:
    """Two nodes with a worker on each that has two messages, and a lease on the first; and a Go nsqd."""

    nodes: list[Nsqd]
    go: str
    workers: list[Client]
    taken: list[list[Message]]
    admin: Nsqadmin

    def text(self, path: str = TAB, user: str = "admin") -> str:
        answer = self.admin.http("GET", path, headers={"X-Forwarded-User": user})
        assert answer.status == 200, answer
        return unescape(answer.body.decode()).replace("<wbr>", "")

    def shows(self, path: str, said: str) -> str:
        """Return a page when it says this. A sample brings the consumers, unlike the messages in flight."""
        page: str = eventually(lambda: said in (it := self.text(path)) and it)
        return page

    def listed(self, arguments: str = "", user: str = "admin") -> Any:
        path = f"/api/v2/inflight/t/c?{arguments}"
        return json.loads(self.admin.http("GET", path, headers={"X-Forwarded-User": user}).body)

    def rows(self, path: str = TAB, user: str = "admin") -> list[str]:
        return self.text(path, user).partition('data-live="inflight-rows"')[2].partition("</tbody>")[0].split("<tr")[1:]


@contextmanager
def a_go_nsqd() -> Iterator[str]:
    """Run what answers like NSQ's nsqd with two messages in flight, and return its address."""
    channel = {
        "channel_name": "c",
        "depth": 0,
        "in_flight_count": 2,
        "message_count": 2,
        "clients": [],
        "paused": False,
    }
    topic = {"topic_name": "t", "depth": 0, "message_count": 2, "channels": [channel]}
    told: dict[str, Any] = {"/stats": {"version": "1.3.0", "health": "OK", "start_time": 1, "topics": [topic]}}
    with JsonServer(lambda path, _: told.get(path, (404, '{"message":"NOT_FOUND"}'))) as server:
        host, _, port = server.address.rpartition(":")
        told["/info"] = {"version": "1.3.0", "broadcast_address": host, "http_port": int(port), "tcp_port": 1}
        yield server.address


@contextmanager
def working(folder: Path, *options: str, everyone: str = "viewer") -> Iterator[Working]:
    """Run all of it. Users without a name have the rights of `everyone`."""
    with ExitStack() as stack:
        nodes, workers, taken = [], [], []
        for at in range(2):
            node = stack.enter_context(Nsqd(folder / f"n{at}", *NODE))
            node.post("/topic/create?topic=t")
            node.post("/channel/create?topic=t&channel=c")
            for number in range(2):
                headers = {"Nsq-Header-job-name": f"task-{at}-{number}", "Nsq-Header-card": f"4929-{at}-{number}"}
                node.http("POST", "/pub?topic=t", b"x" * (number + 1), headers=headers)
            worker = stack.enter_context(node.connect())
            worker.identify(client_id=f"worker-{at}{HTML}", hostname=f"w{at}.lan", user_agent="shop/1.5", **PATIENT)
            worker.subscribe("t", "c", ready=2)
            nodes.append(node)
            workers.append(worker)
            taken.append(worker.messages(2))
        nodes[0].post("/pub?topic=t", b"leased")
        nodes[0].post("/sub?topic=t&channel=c&lease=5h&wait=10s")
        go = stack.enter_context(a_go_nsqd())
        roles = folder / "roles.toml"
        roles.write_text(ROLES.replace(f'users = ["{everyone}"]', 'users = ["*"]'))
        named = [f"nsqd-http-address={it}" for it in (*map(name_of, nodes), go)]
        admin = stack.enter_context(Nsqadmin(*named, "sample-interval=300ms", f"roles-file={roles}", *options))
        it = Working(nodes, go, workers, taken, admin)
        eventually(lambda: "5 messages on the nodes that answer (2 of 3)" in admin_text(it))
        for host in ("w0.lan", "w1.lan"):
            it.shows("/topics/t/c?tab=consumers", host)
        yield it
        assert "Traceback" not in admin.log


def admin_text(it: Working) -> str:
    return it.admin.http("GET", TAB, headers={"X-Forwarded-User": "admin"}).body.decode()


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Working]:
    with working(tmp_path_factory.mktemp("working"), *PATIENCE) as found:
        yield found


def test_the_tab_says_who_has_what_and_names_nodes_that_cannot_tell(it: Working) -> None:
    rows = it.rows()
    assert len(rows) == 5
    assert sum("4929-1-1" in row for row in rows) == 1
    assert all("in 5h" in row or "in 4h" in row for row in rows)
    assert sum(f"worker-0{HTML}" in row and "w0.lan" in row for row in rows) == 2
    assert sum('title="It has no connection' in row for row in rows) == 1
    assert [
        name for name in ("task-0-0", "task-0-1", "task-1-0", "task-1-1") if not any(name in row for row in rows)
    ] == []
    text = it.text()
    assert f"{it.go}</strong>: unknown. It cannot list messages in flight: it is a Go nsqd" in text
    assert "2 messages in flight when last seen" in text
    raw = eventually(lambda: text if "worker-0&lt;b&gt;&amp;é" in (text := admin_text(it)) else None)
    assert HTML not in raw


def test_a_row_leads_to_the_message_and_to_its_consumer_and_the_consumer_leads_back(it: Working) -> None:
    (row,) = [it for it in it.rows() if "task-0-1" in it]
    message, consumer = re.findall(r'href="([^"]*)"', row)[:2]
    assert "4929-0-1" in it.text(message)
    (client,) = [it for it in it.nodes[0].channel("t", "c")["clients"] if it["version"] == "V2"]
    page = it.shows(consumer, f"worker-0{HTML}")
    assert f'Only <strong class="name">{client["remote_address"]}</strong>' in page
    assert (f"worker-0{HTML}" in page, f"worker-1{HTML}" in page) == (True, False)
    (back, *_) = re.findall(r'href="([^"]*tab=inflight[^"]*node=[^"]*)"', page)
    assert len(it.rows(back)) == 2
    assert all("w0.lan" in row for row in it.rows(back))
    by_host = it.shows("/topics/t/c?tab=consumers&group=host", "client=w1.lan")
    (of_host,) = re.findall(r'href="([^"]*tab=inflight[^"]*client=w1.lan[^"]*)"', by_host)
    assert len(it.rows(of_host)) == 2


def test_a_lease_is_found_by_its_holder(it: Working) -> None:
    (lease,) = it.listed("client=127.0.0.1")["messages"]
    assert (lease["consumer"]["version"], lease["consumer"]["client_id"]) == ("HTTP", "127.0.0.1")
    (row,) = it.rows(f"{TAB}&client=127.0.0.1")
    (consumer,) = re.findall(r'href="([^"]*tab=consumers[^"]*)"', row)
    page = it.shows(consumer, "tab=inflight&client=127.0.0.1&node=")
    assert "which is not connected now" not in page


def test_programs_read_the_same_page_by_page(it: Working) -> None:
    found = it.listed()
    times = [one["since"] for one in found["messages"]]
    assert times == sorted(times)
    assert [one["node"] for one in found["missing"]] == [it.go]
    assert sorted((one["count"], bool(one["error"])) for one in found["nodes"]) == [(2, False), (2, True), (3, False)]
    seen, after = [], ""
    for _ in range(9):
        page = it.listed(f"limit=2&after={quote(after)}")
        seen += [one["id"] for one in page["messages"]]
        after = page["after"]
        if not after:
            break
    assert sorted(seen) == sorted(one["id"] for one in found["messages"])
    assert it.listed("after=x")["message"] == "INVALID_ARG_AFTER"


def test_pages_go_on_to_the_last_message(it: Working) -> None:
    """The least number of rows is 20, so a consumer with more has to be there for a second page."""
    many = it.nodes[1].connect()
    many.identify(client_id="many", hostname="many.lan", **PATIENT)
    many.subscribe("many", "c", ready=25)
    for _ in range(25):
        it.nodes[1].post("/pub?topic=many", b"x")
    many.messages(25)
    eventually(lambda: it.admin.http("GET", "/topics/many/c", headers={"X-Forwarded-User": "admin"}).status == 200)
    first = "/topics/many/c?tab=inflight&client=many.lan&limit=20"
    eventually(lambda: len(it.rows(first)) == 20)
    (more,) = re.findall(r'<p class="pager"><a class="button" href="([^"]*)"', it.text(first))
    assert len(it.rows(more)) == 5
    many.close()
    (one, *_) = eventually(lambda: [row for row in it.rows(first) if "Disconnected" in row])
    assert "tab=consumers" not in one


def test_a_touch_is_shown_with_the_consumer_and_with_the_message(it: Working) -> None:
    it.workers[1].send(touch(it.taken[1][0].id))
    found = eventually(lambda: [one for one in it.listed()["messages"] if one["last_touch"]])
    assert [one["id"] for one in found] == [it.taken[1][0].id.decode()]
    assert found[0]["since"] <= found[0]["last_touch"] <= found[0]["deadline"]
    (row,) = [row for row in it.rows() if "task-1-0" in row]
    assert re.search(r'data-label="Last touch"[^>]*>(just now|[^–]* ago)</td>', row)
    consumers = eventually(lambda: [c for c in clients(it) if c["touch_count"]])
    assert [c["hostname"] for c in consumers] == ["w1.lan"]
    assert abs(consumers[0]["last_touch"] - found[0]["last_touch"]) < 2.0


def clients(it: Working) -> list[Any]:
    answer = it.admin.http("GET", "/api/v2/topics/t/c", headers={"X-Forwarded-User": "admin"})
    return [client for row in answer.json["nodes"] for client in row["clients"] or ()]


def test_who_may_not_see_messages_sees_consumers_and_times_only(it: Working) -> None:
    text = it.text(user="viewer")
    assert "Keys, groups and headers are hidden" in text
    assert ("4929-" in text, "task-" in text, "w0.lan" in text) == (False, False, True)
    found = it.listed(user="viewer")["messages"]
    assert "4929-" not in json.dumps(found)
    assert any(one["is_withheld"] for one in found)
    assert it.admin.http("GET", "/api/v2/inflight/none/c", headers={"X-Forwarded-User": "viewer"}).status in (403, 404)


@pytest.mark.parametrize("wrong", ["limit=501", "limit=x", "after=x"])
def test_a_list_that_cannot_be_made(it: Working, wrong: str) -> None:
    assert "message" in it.listed(wrong)
    if "after" in wrong:
        assert "isn't a place in these lists" in it.text(f"{TAB}&{wrong}")


def test_a_node_that_hangs_is_unknown_and_holds_up_nothing(tmp_path: Path) -> None:
    with working(tmp_path) as it:
        hung = it.nodes[1]
        hung.send_signal(signal.SIGSTOP)
        try:
            assert eventually(lambda: f"{name_of(hung)}</strong>: unknown. It does not answer" in it.text())
            text = it.text()
            assert "3 messages on the nodes that answer (1 of 3)" in text
            assert len(it.rows()) == 3
            assert "The other nodes' messages are unknown now" in it.text(f"{TAB}&client=w1.lan")
        finally:
            hung.send_signal(signal.SIGCONT)
