"""Searching a history of 4,000 messages on two real nsqd, one of which is then stopped."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from base64 import b64decode
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from struct import pack
from typing import Any, Final
from urllib.parse import quote, urlencode

import pytest

from tests.nsqadmin.decoding.decoders_files import write_decoders
from tests.nsqadmin.whole.test_api_v2 import stream
from tests.support import shop
from tests.support.cluster import Cluster, a_cluster, name_of
from tests.support.process import Nsqadmin, Nsqd, eventually, needs_module

needs_module("starlette")


COUNT: Final = 2_000  # messages on each node: several answers
SELDOM: Final = ("sample-interval=1s", "discovery-interval=1s")  # nothing here changes between two samples
MANY: Final = 10_001  # more than are replayed at once
FEW: Final = 120  # so few that the slowest machine searches them in the time of one page
SECONDS: Final = 2.0  # the time that a page takes to search


def publish_orders(node: Nsqd, topic: str, first: int, count: int) -> None:
    end = first + count
    for start in range(first, end, 3000):
        numbers = range(start, min(start + 3000, end))
        bodies = [b'{"order_id":%d,"customer":{"country":"DE"}}' % number for number in numbers]
        packed = pack(">I", len(bodies)) + b"".join(pack(">I", len(body)) + body for body in bodies)
        node.post(f"/mpub?topic={topic}&binary=true", packed)


def publish_sold(node: Nsqd) -> None:
    """Publish 600 messages in Protobuf, of which one is cut off, and one in MessagePack by its content type."""
    node.post("/topic/create?topic=sold")
    node.post("/channel/create?topic=sold&channel=billing")
    bodies = [shop.protobuf_order(it, "DE" if it % 200 == 1 else "FR") for it in range(599)]
    bodies.append(b"\x12\x05\x1a\x02D")
    packed = pack(">I", len(bodies)) + b"".join(pack(">I", len(body)) + body for body in bodies)
    node.post("/mpub?topic=sold&binary=true", packed)
    node.post("/topic/create?topic=other")
    node.post("/channel/create?topic=other&channel=billing")
    headers = {"Nsq-Header-Content-Type": "application/msgpack"}
    assert node.http("POST", "/pub?topic=other", b"\x81\xa2id\x05", headers=headers).status == 200


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with a_cluster(tmp_path_factory.mktemp("cluster")) as it:
        for number, node in enumerate(it.nodes):
            for channel in ("billing", "shipping"):
                node.post("/topic/create?topic=orders")
                node.post(f"/channel/create?topic=orders&channel={channel}")
            publish_orders(node, "orders", number * COUNT, COUNT)
        publish_orders(it.nodes[0], "many", 0, MANY)
        publish_orders(it.nodes[0], "few", 0, FEW)
        publish_sold(it.nodes[0])
        it.wait_for("orders")
        it.wait_for("many", 1)
        it.wait_for("few", 1)
        it.wait_for("sold", 1)
        it.wait_for("other", 1)
        yield it


SOLD: Final = """
[[decoder]]
topic = "sold"
decode = "protobuf"
descriptors = "shop.desc"
message = "shop.Order"
"""


@pytest.fixture(scope="module")
def admin(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqadmin]:
    decoders = write_decoders(tmp_path_factory.mktemp("decoders"), SOLD)
    with Nsqadmin(*cluster.lookupd_options, *SELDOM, f"decoders-file={decoders}") as it:
        eventually(lambda: sum(log["next"] for log in logs(it)) == 2 * COUNT)
        yield it
        assert "Traceback" not in it.log


def logs(admin: Nsqadmin) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = admin.json("GET", "/api/v2/logs/orders").json.get("logs", [])
    return found


def search(admin: Nsqadmin, wanted: str, **more: object) -> tuple[list[Any], list[dict[str, Any]]]:
    """Return the hits, and how far the search had looked each time it said so; the last is the end."""
    arguments = "".join(f"&{name}={quote(str(value))}" for name, value in more.items())
    hits: list[Any] = []
    progress: list[dict[str, Any]] = []
    with stream(admin, f"/api/v2/search/orders?filter={quote(wanted)}{arguments}") as events:
        for name, data in events:
            if name == "message":
                hits.append(data)
            else:
                progress.append(data)
    return hits, progress


def test_one_of_the_oldest_is_found_among_4000(admin: Nsqadmin) -> None:
    hits, progress = search(admin, "order_id = 123")
    assert [json.loads(hit["body"])["order_id"] for hit in hits] == [123]
    assert len(progress) > 3
    assert [it["looked"] for it in progress] == sorted(it["looked"] for it in progress)
    assert (progress[-1]["looked"], progress[-1]["is_whole"]) == (2 * COUNT, True)


def test_a_search_goes_on_where_it_stopped(admin: Nsqadmin) -> None:
    numbers: list[int] = []
    cursor, goes_on = "", True
    while goes_on:
        hits, progress = search(admin, "order_id < 7", limit=3, cursor=cursor)
        numbers += [json.loads(hit["body"])["order_id"] for hit in hits]
        cursor, goes_on = progress[-1]["cursor"], progress[-1]["goes_on"]
    assert numbers == [6, 5, 4, 3, 2, 1, 0]


def test_a_cursor_that_is_none_is_refused(admin: Nsqadmin) -> None:
    answer = admin.json("GET", "/api/v2/search/orders?cursor=nonsense")
    assert (answer.status, answer.json["message"]) == (400, "INVALID_ARG_CURSOR")


def test_a_node_that_hangs_is_named_and_the_other_is_searched(admin: Nsqadmin, cluster: Cluster) -> None:
    hanging = cluster.nodes[1]
    os.kill(hanging.pid, signal.SIGSTOP)
    try:
        hits, progress = search(admin, "order_id = 123")
    finally:
        os.kill(hanging.pid, signal.SIGCONT)
        eventually(
            lambda: sum(log["next"] for log in logs(admin)) == 2 * COUNT
        )  # nsqadmin has seen that it answers again
    assert [json.loads(hit["body"])["order_id"] for hit in hits] == [123]
    assert [it["node"] for it in progress[-1]["silent"]] == [name_of(hanging)]
    assert not progress[-1]["is_whole"]


# Bodies in Protobuf and MessagePack


def bytes_in(line: dict[str, Any]) -> bytes:
    return line["body"].encode() if "body" in line else b64decode(line["body_base64"])


def test_protobuf_messages_are_searched_shown_and_downloaded(admin: Nsqadmin, cluster: Cluster) -> None:
    query = f"filter={quote('customer.country = DE')}"
    answer = admin.http("GET", f"/api/v2/search/sold?{query}&format=ndjson")
    hits = [json.loads(line) for line in answer.body.splitlines()][:-1]
    assert [json.loads(hit["body"])["id"] for hit in hits] == [401, 201, 1]
    assert {hit["decoded"] for hit in hits} == {"Protobuf shop.Order"}
    raw = admin.http("GET", f"/api/v2/search/sold?{query}&format=ndjson&raw=true").body.splitlines()
    assert [bytes_in(json.loads(line)) for line in raw[:-1]] == [shop.protobuf_order(it) for it in (401, 201, 1)]
    found = admin.http("GET", f"/topics/sold?tab=messages&{query}&columns=customer.country").body.decode()
    assert '<td data-label="customer.country" class="mono">DE</td>' in found
    assert "<mark>DE</mark>" in found
    assert "raw=true" in found
    node = name_of(cluster.nodes[0])
    one = admin.http("GET", f"/message?topic=sold&node={node}&sequence=201").body.decode()
    assert "Decoded from Protobuf shop.Order." in one
    link = unescape(re.findall(r'href="(/api/v2/body/[^"]+)" download', one)[0])
    bytes_ = admin.http("GET", link)
    assert (bytes_.body, bytes_.headers["content-type"]) == (shop.protobuf_order(201), "application/octet-stream")
    assert (
        "00000000  08 c9 01" in admin.http("GET", f"/message?topic=sold&node={node}&sequence=201&as=hex").body.decode()
    )
    missing = admin.json("GET", f"/api/v2/body/sold?node={node}&sequence=9999")
    assert (missing.status, missing.json["message"]) == (404, "MESSAGE_NOT_FOUND")


def test_a_body_that_does_not_fit_says_why(admin: Nsqadmin, cluster: Cluster) -> None:
    why = "Protobuf shop.Order: field 2 (customer) has 5 bytes, of which only 3 are there, at byte 1"
    found = admin.http("GET", "/topics/sold?tab=messages&limit=20").body.decode()
    assert f'<span class="chip">not decoded</span> {why} · ' in found
    one = admin.http("GET", f"/message?topic=sold&node={name_of(cluster.nodes[0])}&sequence=599").body.decode()
    assert f"Not decoded. {why}." in one


def test_without_a_rule_the_content_type_decides(admin: Nsqadmin, cluster: Cluster) -> None:
    (one,) = admin.json("GET", "/api/v2/messages/other").json["messages"]
    assert (one["body"], one["decoded"]) == ('{"id": 5}', "MessagePack")
    with stream(admin, "/api/v2/tail/other?seconds=20") as events:
        node, headers = cluster.nodes[0], {"Nsq-Header-Content-Type": "application/msgpack"}
        eventually(lambda: len(node.topic("other")["channels"]) == 2)
        node.http("POST", "/pub?topic=other", b"\x81\xa2id\x06", headers=headers)
        _, data = next(events)
    assert (data["body"], data["decoded"]) == ('{"id": 6}', "MessagePack")


# Pages, without a script


def page(admin: Nsqadmin, query: str, topic: str = "orders") -> str:
    return admin.http("GET", f"/topics/{topic}?tab=messages&{query}").body.decode()


def test_the_page_searches_the_whole_history(admin: Nsqadmin) -> None:
    path = f"/topics/orders?tab=messages&filter={quote('order_id = 123')}&columns=order_id+customer.country"
    computed, found = admin.cpu_seconds, ""
    while path:
        began = time.monotonic()
        shown = admin.http("GET", path).body.decode()
        found += shown
        more = re.search(r'id="go-on" href="([^"]+)"', shown)
        path = unescape(more[1]) if more else ""
        # A busy machine needs several pages, but each uses the time that it has.
        assert not more or time.monotonic() - began >= SECONDS
    assert admin.cpu_seconds - computed < SECONDS, "an idle machine does it at once"
    assert found.count("<mark>123</mark>") == 1
    assert '<td data-label="customer.country" class="mono">DE</td>' in found
    assert f"all {2 * COUNT:,} messages" in shown


def test_the_chips_keep_the_search(admin: Nsqadmin) -> None:
    chips = (
        page(admin, f"filter={quote('order_id = 123')}").partition('aria-label="Start from"')[2].partition("</nav>")[0]
    )
    assert chips.count("<a ") == 5
    assert chips.count("filter=order_id+%3D+123") == 5


def post(admin: Nsqadmin, *fields: tuple[str, object]) -> str:
    answer = admin.http("POST", "/actions/redeliver", urlencode(fields).encode())
    return answer.body.decode()


def finish_everything(cluster: Cluster, channel: str) -> None:
    for node in cluster.nodes:
        node.post(f"/channel/empty?topic=orders&channel={channel}")


def depths(cluster: Cluster, channel: str) -> list[int]:
    return [node.channel("orders", channel)["depth"] for node in cluster.nodes]


def test_selected_messages_go_to_one_channel_alone(admin: Nsqadmin, cluster: Cluster) -> None:
    for channel in ("billing", "shipping"):
        finish_everything(cluster, channel)
    first, second = map(name_of, cluster.nodes)
    plan = post(admin, ("topic", "orders"), ("pick", f"123@{first}"), ("pick", f"7@{second}"), ("channel", "billing"))
    assert "Replay 2 messages of orders" in plan
    assert 'value="channel:billing" required checked' in plan
    assert depths(cluster, "billing") == [0, 0]
    receipt = post(admin, ("topic", "orders"), ("messages", f"123@{first} 7@{second}"), ("to", "channel:billing"))
    assert "2 messages queued for redelivery to billing" in receipt
    assert (depths(cluster, "billing"), depths(cluster, "shipping")) == ([1, 1], [0, 0])
    newest = admin.json("GET", "/api/v2/activity?what=replay").json["activity"][0]
    assert newest["text"] == "replayed 2 of 2 messages of orders to the channel billing only"
    assert (newest["channel"], newest["result"]) == ("billing", "ok")


def test_all_hits_of_a_search_go_to_one_channel(admin: Nsqadmin, cluster: Cluster) -> None:
    for channel in ("billing", "shipping"):
        finish_everything(cluster, channel)
    wanted = (("topic", "orders"), ("all", "yes"), ("filter", "order_id < 500"), ("from", "latest"))
    plan = post(admin, *wanted)
    assert "Replay 500 messages of orders" in plan
    chosen = plan.partition('name="messages" value="')[2].partition('"')[0]
    log = cluster.nodes[0].http("GET", "/topic/log?topic=orders").json["log"]
    assert chosen == f"0-499@{name_of(cluster.nodes[0])}@{log}"
    assert "500 messages queued for redelivery" in post(
        admin, ("topic", "orders"), ("messages", chosen), ("to", "channel:billing")
    )
    assert (depths(cluster, "billing"), depths(cluster, "shipping")) == ([500, 0], [0, 0])
    many = post(admin, ("topic", "many"), ("all", "yes"), ("filter", "country"))
    assert "first 10,000 matches; there may be more" in many


def test_a_page_says_whether_there_are_more_matches_and_which_ones_a_button_replays(admin: Nsqadmin) -> None:
    shown = page(admin, "limit=50&filter=" + quote("order_id < 100"), "few")
    assert re.search("First 50 matches; there (may be|are) more</b>", shown)
    assert "Replay all matches, also those not shown…" in shown
    chosen = shown.partition('id="replay-shown"')[2].partition('value="')[2].partition('"')[0]
    assert "Replay these 50…" in shown
    assert "Replay 50 messages of few" in post(admin, ("topic", "few"), ("messages", chosen))
    plan = post(admin, ("topic", "few"), ("all", "yes"), ("filter", "order_id < 100"))
    assert "Replay 100 messages of few" in plan
    assert f"All messages that match “order_id &lt; 100”: {FEW} were searched." in plan
    only = page(admin, "limit=50&filter=" + quote("order_id = 3"), "few")
    assert "1 match in all</b>" in only
    assert "Replay these 1…" not in only
    assert "Replay this one…" in only
    assert "also those not shown" not in only


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ([("topic", "orders")], "no message is selected"),
        ([("topic", "nosuch"), ("pick", "1@n")], "there is no topic nosuch"),
        ([("topic", "orders"), ("pick", "1@evil:80"), ("to", "channel:billing")], "no node has the address evil:80"),
        ([("topic", "orders"), ("pick", "nonsense")], "expected sequence@node"),
        ([("topic", "orders"), ("pick", "0-99999@n")], "at most 10,000 at once"),
        ([("topic", "orders"), ("pick", "1@{node}"), ("to", "channel:nosuch")], "has no channel nosuch"),
        ([("topic", "orders"), ("pick", "1@{node}"), ("to", "all")], "publishing is not enabled"),
        ([("topic", "orders"), ("pick", "1@{node}"), ("to", "nobody")], "choose a channel"),
    ],
)
def test_what_cannot_be_replayed(admin: Nsqadmin, cluster: Cluster, fields: list[tuple[str, str]], text: str) -> None:
    node = name_of(cluster.nodes[0])
    assert text in post(admin, *((name, value.replace("{node}", node)) for name, value in fields))


def test_one_message_has_a_page(admin: Nsqadmin, cluster: Cluster) -> None:
    path = f"/message?topic=orders&node={name_of(cluster.nodes[0])}"
    assert "order_id" in admin.http("GET", f"{path}&sequence=123").body.decode()
    assert admin.http("GET", f"{path}&sequence=99999").status == 404
    assert admin.http("GET", f"{path}&sequence=x").status == 404


def downloaded(admin: Nsqadmin, query: str) -> tuple[list[Any], dict[str, Any]]:
    """Return the messages of the file that the page's button downloads, and its last line."""
    (link,) = re.findall(r'href="([^"]*)" download=', page(admin, query))
    answer = admin.http("GET", unescape(link))
    assert "attachment" in answer.headers["content-disposition"]
    *messages, last = map(json.loads, answer.body.splitlines())
    return messages, last["end"]


def test_the_button_downloads_all_hits_of_the_search_through_the_whole_history(admin: Nsqadmin) -> None:
    hits, end = downloaded(admin, f"filter={quote('order_id < 7')}")
    assert [json.loads(hit["body"])["order_id"] for hit in hits] == [6, 5, 4, 3, 2, 1, 0]
    assert (end["hits"], end["looked"], end["is_whole"], end["silent"]) == (7, 2 * COUNT, True, [])
    everything, end = downloaded(admin, "filter=order_id&from=earliest")
    assert sorted(json.loads(hit["body"])["order_id"] for hit in everything) == list(range(2 * COUNT))
    assert (end["hits"], end["is_whole"]) == (2 * COUNT, True)


def test_without_a_search_the_button_downloads_the_messages_of_the_page(admin: Nsqadmin) -> None:
    messages, end = downloaded(admin, "limit=20")
    assert len(messages) == end["hits"] == 20
    assert end["goes_on"]
    assert len(downloaded(admin, f"limit=20&cursor={quote(end['cursor'])}")[0]) == 20


def test_the_file_says_which_node_was_not_looked_at(admin: Nsqadmin, cluster: Cluster) -> None:
    hanging = cluster.nodes[1]
    os.kill(hanging.pid, signal.SIGSTOP)
    try:
        hits, end = downloaded(admin, f"filter={quote('order_id < 7')}")
    finally:
        os.kill(hanging.pid, signal.SIGCONT)
        eventually(
            lambda: sum(log["next"] for log in logs(admin)) == 2 * COUNT
        )  # nsqadmin has seen that it answers again
    assert len(hits) == 7
    assert ([it["node"] for it in end["silent"]], end["is_whole"]) == ([name_of(hanging)], False)


def test_the_file_has_only_what_its_reader_may_see(cluster: Cluster, admin: Nsqadmin, tmp_path: Path) -> None:
    roles = tmp_path / "roles.toml"
    roles.write_text(
        '[[role]]\nname="v"\nusers=["viewer"]\ncan=["viewer"]\n'
        '[[role]]\nname="o"\nusers=["other"]\ncan=["payload"]\ntopics=["clicks"]\n'
    )
    path = f"/api/v2/search/orders?filter={quote('order_id = 6')}&format=ndjson"
    with Nsqadmin(*cluster.lookupd_options, *SELDOM, f"roles-file={roles}", "mask=$.customer.country") as guarded:
        viewer = {"X-Forwarded-User": "viewer"}
        eventually(lambda: guarded.http("GET", "/api/v2/topics/orders", headers=viewer).status == 200)
        hit, end = map(json.loads, guarded.http("GET", path, headers=viewer).body.splitlines())
        assert (json.loads(hit["body"])["customer"]["country"], end["end"]["hits"]) == ("***", 1)
        hidden = path.replace("order_id%20%3D%206", "customer.country%20%3D%20DE")
        (end,) = map(json.loads, guarded.http("GET", hidden, headers=viewer).body.splitlines())
        assert end["end"]["hits"] == 0
        assert guarded.http("GET", path, headers={"X-Forwarded-User": "other"}).status in (403, 404)
        assert guarded.http("GET", path).status == 403


def test_who_may_not_operate_sees_why_and_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    roles = tmp_path / "roles.toml"
    roles.write_text('[[role]]\nname="r"\nusers=["reader"]\ncan=["viewer", "payload"]\n')
    reader = {"X-Forwarded-User": "reader"}
    finish_everything(cluster, "billing")
    with Nsqadmin(*cluster.lookupd_options, *SELDOM, f"roles-file={roles}") as guarded:

        def page() -> str:
            return guarded.http("GET", "/topics/orders?tab=messages&filter=order_id", headers=reader).body.decode()

        def replays(shown: str) -> list[str]:
            table = shown.partition('id="selection"')[2]
            return re.findall(r"<button[^>]*>(?:<svg.*?</svg>)?(?:<span[^>]*>)?Replay[^<]*", table)

        # One for each row, for the selected ones, for those shown, and for all hits. At first, nsqadmin may not know the nodes yet.
        shown = eventually(lambda: len(replays(it := page())) == 53 and it)
        buttons = replays(shown)
        assert all("disabled title=" in button and "operator" in button for button in buttons)
        assert "Replaying is not possible: " in shown
        fields = {"topic": "orders", "messages": f"1@{name_of(cluster.nodes[0])}", "to": "channel:billing"}
        answer = guarded.http("POST", "/actions/redeliver", urlencode(fields).encode(), headers=reader)
        assert (answer.status, "operator" in answer.body.decode()) == (403, True)
        document = {"topic": "orders", "channel": "billing", "messages": fields["messages"]}
        assert guarded.json("POST", "/api/v2/redeliver", document, X_Forwarded_User="reader").status == 403
    assert depths(cluster, "billing") == [0, 0]
