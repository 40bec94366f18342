"""Buried messages in nsqadmin, on two real nsqd: seen, kicked, discarded, and with a node that hangs."""

from __future__ import annotations

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

from nsqcommon.wire.extensions import bury as bury_command
from tests.support.cluster import name_of
from tests.support.process import PATIENT, Nsqadmin, Nsqd, Nsqlookupd, eventually, needs_module

needs_module("starlette")


TAB = "/topics/t/c?tab=buried"
COUNT = 30
HTML = b"<script>alert(1)</script>"


@dataclass
class Two:
    """Two nodes that have each buried 30 messages of channel c."""

    nodes: list[Nsqd]
    admin: Nsqadmin

    @property
    def count(self) -> int:
        totals = self.admin.json("GET", "/api/v2/health").json["totals"]
        return int(totals["buried_count"])

    def text(self, path: str = TAB) -> str:
        answer = self.admin.http("GET", path)
        assert answer.status == 200, answer
        return unescape(answer.body.decode())

    def post(self, path: str, form: str, status: int = 200, *, user: str = "") -> str:
        headers = {"content-type": "application/x-www-form-urlencoded", "x-forwarded-user": user}
        answer = self.admin.http("POST", path, form.encode(), headers=headers)
        assert answer.status == status, answer
        return unescape(answer.body.decode())


def bury(node: Nsqd, topic: str = "t") -> None:
    node.post(f"/topic/create?topic={topic}")
    node.post(f"/channel/create?topic={topic}&channel=c")
    node.connect().publish(topic, HTML, *[b'{"n":%d,"secret":"s"}' % number for number in range(COUNT - 1)])
    client = node.connect()
    client.identify(client_id="worker-1")
    client.subscribe(topic, "c", ready=COUNT)
    for message in client.messages(COUNT):
        client.send(b"REQ %b 0\n" % message.id)
    assert eventually(lambda: node.channel(topic).get("buried_count") == COUNT)
    client.close()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    with two_nodes(tmp_path) as it:
        yield it


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    """Two nodes for tests that change nothing."""
    with two_nodes(tmp_path_factory.mktemp("untouched")) as it:
        yield it


@pytest.fixture
def two_of_which_one_hangs(tmp_path: Path) -> Iterator[Two]:
    """Return two nodes for tests that stop one of them."""
    with two_nodes(tmp_path, "http-client-request-timeout=5s") as it:
        yield it


@contextmanager
def two_nodes(folder: Path, patience: str = PATIENT) -> Iterator[Two]:
    policy = folder / "policy.toml"
    policy.write_text('[[policy]]\nchannel = "c"\nmax_attempts = 1\n')
    with ExitStack() as stack:
        lookupd = stack.enter_context(Nsqlookupd())
        options = ["broadcast-address=127.0.0.1", f"lookupd-tcp-address=127.0.0.1:{lookupd.tcp[1]}"]
        options.append(f"policy-file={policy}")
        nodes = [stack.enter_context(Nsqd(folder / name, *options)) for name in ("n1", "n2")]
        for node in nodes:
            bury(node)
        eventually(lambda: len(lookupd.producers("t")) == 2)
        quick = ("sample-interval=300ms", "discovery-interval=300ms", patience)
        admin = stack.enter_context(Nsqadmin(f"lookupd-http-address=127.0.0.1:{lookupd.http_address[1]}", *quick))
        it = Two(nodes, admin)
        eventually(lambda: it.count == 2 * COUNT)
        yield it
        assert "Traceback" not in admin.log


def test_the_reasons_and_the_messages_of_all_nodes_are_shown(untouched: Two) -> None:
    text = untouched.text()
    assert "1 attempts, the last one requeued" in text
    assert "worker-1" in text
    assert all(name_of(node) in text for node in untouched.nodes)
    assert f'title="{2 * COUNT}"' in text
    assert text.count("<tr data-row") == 1 + 20  # a reason, and a page of messages
    raw = untouched.admin.http("GET", f"{TAB}&limit=100").body
    assert raw.count(b"<tr data-row") == 1 + 2 * COUNT
    assert HTML not in raw
    assert b"&lt;script&gt;" in raw


def test_messages_of_all_nodes_come_in_the_order_of_their_publishing(two: Two) -> None:
    """Each node buries its first message only after the other has published, so the times of burial are in another."""
    for node in two.nodes:
        node.post("/topic/create?topic=mixed")
        node.post("/channel/create?topic=mixed&channel=c")
    for number in range(4):
        two.nodes[number % 2].post("/pub?topic=mixed", b"%d" % number)
    for node in reversed(two.nodes):
        client = node.connect()
        client.subscribe("mixed", "c", ready=2)
        for message in client.messages(2):
            client.send(b"REQ %b 0\n" % message.id)
    eventually(lambda: buried(two, "mixed") == [2, 2])
    eventually(lambda: two.admin.http("GET", "/topics/mixed/c?tab=buried").body.count(b"data-detail") == 4)
    page = two.text("/topics/mixed/c?tab=buried")
    places = re.findall(r'name="pick" value="[^@]*@([^"]*)"', page)
    assert places == [name_of(two.nodes[number % 2]) for number in range(4)]
    published = re.findall(r'data-label="Published" title="([^"]*)"', page)
    assert published == sorted(published)


def test_pages_go_on_to_the_last_message(untouched: Two) -> None:
    seen, path = 0, TAB
    for _ in range(4):
        text = untouched.text(path)
        seen += text.count("data-detail")
        _, found, rest = text.partition('<p class="pager"><a class="button" href="')
        if not found:
            break
        path = rest.partition('"')[0]
    assert seen == 2 * COUNT


def test_one_message_and_none(untouched: Two) -> None:
    page = f"/buried?topic=t&channel=c&node={quote(name_of(untouched.nodes[0]))}"
    raw = untouched.admin.http("GET", f"{page}&sequence=0").body
    assert HTML not in raw
    assert b"&lt;script&gt;" in raw
    assert untouched.admin.http("GET", f"{page}&sequence=999").status == 404
    assert untouched.admin.http("GET", "/buried?topic=t&channel=c&node=evil:80&sequence=1").status == 404


def test_a_node_that_hangs_is_named_and_not_counted_as_zero(two_of_which_one_hangs: Two) -> None:
    two = two_of_which_one_hangs
    hung = two.nodes[1]
    hung.send_signal(signal.SIGSTOP)
    try:
        text = two.text()
        assert f"{name_of(hung)}</strong> did not report its buried messages" in text
        assert f"{COUNT} messages when last seen, not included in the figures below" in text
        tfoot = text.partition("<tfoot>")[2].partition("</tfoot>")[0]
        assert words_of(tfoot) == f"All nodes that answer {COUNT}"
        assert text.count(f"{name_of(hung)}</strong>") == 1  # it is said once on the page
    finally:
        hung.send_signal(signal.SIGCONT)
    eventually(lambda: "did not report" not in two.text())


def words_of(html: str) -> str:
    return " ".join(re.sub("<[^>]*>", " ", html).split())


def buried(two: Two, topic: str = "t") -> list[int]:
    return [node.channel(topic).get("buried_count", 0) for node in two.nodes]


def test_kick_at_a_rate_shows_progress_and_stopping_leaves_the_rest_buried(two: Two) -> None:
    plan = two.text("/actions/kick_buried?topic=t&channel=c")
    assert f"Kick {2 * COUNT} buried messages of t/c" in plan
    assert "No consumer is connected there" in plan
    assert "At most 1,000 a second" in plan
    slow = two.text("/actions/kick_buried?topic=t&channel=c&rate=2&limit=8")
    assert "At most 2 a second" in slow
    assert "Kick 8 buried messages" in slow
    receipt = two.post("/actions/kick_buried", "topic=t&channel=c&rate=1", user="ana")
    assert "Running:" in receipt
    assert "by ana (127.0.0.1:" in two.text()
    assert ">Stop</button>" in receipt
    assert f"</strong> 0 of {COUNT}, 0.50/s" in two.text() or f" of {COUNT}, 0.5" in two.text()
    again = two.text("/actions/kick_buried?topic=t&channel=c")
    assert "is already running a kick" in again
    stopped = two.post("/actions/stop_buried", "topic=t&channel=c")
    assert f"of {COUNT} kicked on {name_of(two.nodes[0])}, the others stay buried" in stopped
    assert sum(buried(two)) > 0
    assert "ended" in two.text()
    words = [it["text"] for it in two.admin.json("GET", "/api/v2/activity?kind=action").json["activity"]]
    assert any(f"of {2 * COUNT} buried messages of t/c" in it for it in words)
    assert any(it.startswith("stopped in t/c: kick on") for it in words)


def test_one_reason_and_named_messages(two: Two) -> None:
    ids = [it.partition('"')[0] for it in two.text().split('name="pick" value="')[1:4]]
    two.post("/actions/kick_buried", "&".join(["topic=t&channel=c", *(f"pick={quote(it)}" for it in ids)]))
    eventually(lambda: sum(buried(two)) == 2 * COUNT - 3)
    receipt = two.post("/actions/kick_buried", "topic=t&channel=c&rate=&limit=1&reason=requeued")
    assert "1 message kicked" in receipt
    none = two.text("/actions/kick_buried?topic=t&channel=c&reason=nosuch")
    assert "No matching message is buried" in none
    two.post("/actions/kick_buried", "topic=t&channel=c&on=selected", status=400)
    two.post("/actions/kick_buried", "topic=t&channel=c&pick=0000000000000001@evil:80", status=400)
    assert sum(buried(two)) == 2 * COUNT - 4


def bury_with(node: Nsqd, *reasons: str) -> None:
    """Bury a message with each reason in the channel `c` of the topic `mails`."""
    node.post("/topic/create?topic=mails")
    node.post("/channel/create?topic=mails&channel=c")
    node.connect().publish("mails", *[b"{}" for _ in reasons])
    client = node.connect()
    client.identify(client_id="mailer", feature_negotiation=True, extensions=["bury"])
    client.subscribe("mails", "c", ready=len(reasons))
    for message, reason in zip(client.messages(len(reasons)), reasons, strict=True):
        client.send(bury_command(message.id, reason))
    assert eventually(lambda: node.channel("mails").get("buried_count") == len(reasons))
    client.close()


def test_reasons_that_differ_in_a_number_are_one_row_and_one_kick(two: Two) -> None:
    for at, node in enumerate(two.nodes):
        numbers = range(100 * at, 100 * at + 8)
        bury_with(
            node, *(f"no address of customer {it}" for it in numbers), "no template for invoice 7", "out of paper"
        )
    tab = "/topics/mails/c?tab=buried"
    eventually(lambda: "no address of customer" in two.admin.http("GET", tab).body.decode())
    text = two.text(tab)
    rows = text.partition("<tbody>")[2].partition("</tbody>")[0]
    assert (rows.count("<tr data-row"), rows.count("no address of customer *")) == (3, 1)
    assert "16 reasons" in rows
    assert "no address of customer 7<" not in rows  # ten are listed
    assert "no template for invoice 7" in rows
    href = re.search(r'href="(/actions/kick_buried[^"]*reason=no\+address[^"]*)"', rows)
    assert href is not None, rows
    plan = two.text(href[1])
    assert "Kick 16 buried messages of mails/c" in plan
    assert "16 different reasons contain this text" in plan
    reason = re.search(r'name="reason" value="([^"]*)"', plan)
    assert reason is not None
    assert reason[1] == "no address of customer "
    two.post("/actions/kick_buried", f"topic=mails&channel=c&rate=&reason={quote(reason[1])}")
    assert eventually(lambda: buried(two, "mails") == [2, 2])
    left = two.text(tab)
    assert "no address of customer" not in left.partition("<tbody>")[2].partition("</tbody>")[0]
    assert all(it in left for it in ("no template for invoice 7", "out of paper"))


def test_a_discard_wants_its_number_typed(two: Two) -> None:
    two.post("/actions/discard_buried", "topic=t&channel=c&typed=1", status=400)
    assert buried(two) == [COUNT, COUNT]
    assert "Done." in two.post("/actions/discard_buried", f"topic=t&channel=c&typed={2 * COUNT}")
    assert buried(two) == [0, 0]
    assert [node.channel("t")["depth"] for node in two.nodes] == [0, 0]


def test_a_kick_leaves_out_a_node_that_hangs_and_says_so(two_of_which_one_hangs: Two) -> None:
    two = two_of_which_one_hangs
    hung = two.nodes[1]
    hung.send_signal(signal.SIGSTOP)
    try:
        receipt = two.post("/actions/kick_buried", "topic=t&channel=c&rate=")
        assert f"{name_of(hung)} was not asked" in receipt
        assert "Done in part." in receipt
    finally:
        hung.send_signal(signal.SIGCONT)
    eventually(lambda: buried(two) == [0, COUNT])


def undo_of(page: str) -> str:
    """Return the form behind the button that takes a kick back."""
    _, found, rest = page.partition("/actions/undo_kick")
    assert found
    return "topic=t&channel=c" + "".join(f"&kick={quote(it)}" for it in values(rest, "kick"))


def values(text: str, name: str) -> list[str]:
    """Return the values of the fields of this name in a form."""
    fields = text.partition("</form>")[0].split(f'name="{name}" value="')[1:]
    return [it.partition('"')[0] for it in fields]


@pytest.mark.parametrize("selected", [False, True])
def test_a_kick_is_taken_back_as_far_as_nobody_has_got_its_messages(two: Two, selected: bool) -> None:
    assert "undo_kick" not in two.text()
    form = "topic=t&channel=c&rate="
    if selected:
        picks = two.text().split('name="pick" value="')[1:21]
        form += "".join("&pick=" + quote(it.partition('"')[0]) for it in picks)
    receipt = two.post("/actions/kick_buried", form)
    eventually(lambda: "undo_kick" in two.text())
    kicked = 2 * COUNT - sum(buried(two))
    assert kicked == (20 if selected else 2 * COUNT)
    client = two.nodes[0].connect()
    client.subscribe("t", "c", ready=3)
    client.messages(3)
    client.send(b"RDY 0\n")
    undone = two.post("/actions/undo_kick", undo_of(receipt))
    assert f"{kicked - 3} messages buried again; 3 already delivered" in undone
    assert sum(buried(two)) == 2 * COUNT - 3
    assert "undo_kick" not in two.text()
    assert "it is too late" in two.post("/actions/undo_kick", undo_of(receipt))
    words = [it["text"] for it in two.admin.json("GET", "/api/v2/activity?kind=action").json["activity"]]
    assert f"undid a kick of t/c: {kicked - 3} of {kicked} messages buried again" in words
    two.post("/actions/undo_kick", "topic=t&channel=c", status=400)
    two.post("/actions/undo_kick", "topic=t&channel=c&kick=1@evil:80", status=400)


def test_a_kick_under_way_is_taken_back_also_without_a_node_that_hangs(two_of_which_one_hangs: Two) -> None:
    two = two_of_which_one_hangs
    two.post("/actions/kick_buried", "topic=t&channel=c&rate=1")
    page = two.text()
    assert len(values(page.partition("/actions/undo_kick")[2], "kick")) == 2
    hung = two.nodes[1]
    hung.send_signal(signal.SIGSTOP)
    try:
        undone = two.post("/actions/undo_kick", undo_of(page))
        assert f"asked, no answer: {name_of(hung)}" in undone
    finally:
        hung.send_signal(signal.SIGCONT)
    eventually(lambda: buried(two) == [COUNT, COUNT])  # the hung node does what it was asked for when it comes back


@pytest.mark.parametrize(
    ("can", "kick", "discard"), [("viewer", 403, 403), ("operator", 200, 403), ("admin", 200, 200)]
)
def test_rights_are_guarded_on_the_server(two: Two, tmp_path: Path, can: str, kick: int, discard: int) -> None:
    roles = tmp_path / "roles.toml"
    roles.write_text(f'[[role]]\nname = "r"\nusers = ["*"]\ncan = ["{can}"]\n')
    lookupd = next(it for it in two.admin.options if "lookupd-http-address" in it)
    with Nsqadmin(lookupd, "sample-interval=300ms", f"roles-file={roles}", PATIENT) as admin:
        eventually(lambda: admin.json("GET", "/api/v2/health").json["totals"]["buried_count"] == 2 * COUNT)
        page = admin.http("GET", TAB).body.decode()
        assert ("Kick all…<span" in page) == (kick == 403)
        assert ("Discard all…<span" in page) == (discard == 403)
        assert ('"secret":"s"' in unescape(page)) == (can == "admin")
        headers = {"content-type": "application/x-www-form-urlencoded"}
        form = f"topic=t&channel=c&rate=&limit=1&typed=1&kick=1@{quote(name_of(two.nodes[0]))}".encode()
        for verb, status in (("stop", kick), ("kick", kick), ("discard", discard)):
            assert admin.http("POST", f"/actions/{verb}_buried", form, headers=headers).status == status
        assert admin.http("POST", "/actions/undo_kick", form, headers=headers).status == kick
        left = sum(buried(two))  # the forms above have taken some
        for verb, status in (("kick", kick), ("discard", discard)):
            body = {"topic": "t", "channel": "c", "verb": verb, "limit": 1, "rate": 0, "count": 1}
            assert admin.json("POST", "/api/v2/buried", body).status == status
            left -= status == 200
        assert admin.json("POST", "/api/v2/buried/stop", {"topic": "t", "channel": "c"}).status == kick
        assert sum(buried(two)) == left


# /api/v2


def asked(two: Two, path: str, status: int = 200, **body: Any) -> Any:
    answer = two.admin.json("POST", f"/api/v2/buried{path}", {"topic": "t", "channel": "c", **body})
    assert answer.status == status, answer
    return answer.json


def test_programs_list_what_is_buried_page_after_page(untouched: Two) -> None:
    path, seen = "/api/v2/buried/t/c?limit=20", []
    while True:
        page = untouched.admin.json("GET", path).json
        assert sorted((it["node"], it["count"]) for it in page["nodes"]) == sorted(
            (name_of(n), COUNT) for n in untouched.nodes
        )
        assert page["missing"] == []
        seen += page["messages"]
        if not page["after"]:
            break
        path = f"/api/v2/buried/t/c?limit=20&after={quote(page['after'])}"
    assert len({(it["node"], it["sequence"]) for it in seen}) == len(seen) == 2 * COUNT
    assert {it["client"] for it in seen} == {"worker-1"}
    assert {it["message"]["body"] for it in seen} >= {HTML.decode(), '{"n":0,"secret":"s"}'}
    for wrong in ("after=x", "limit=501"):
        assert untouched.admin.json("GET", f"/api/v2/buried/t/c?{wrong}").status == 400
    assert untouched.admin.json("GET", "/api/v2/buried/t/nosuch").status == 404


def test_programs_kick_what_they_name_and_what_a_reason_selects(two: Two) -> None:
    messages = two.admin.json("GET", "/api/v2/buried/t/c?limit=3").json["messages"]
    named = " ".join(f"{it['id']}@{it['node']}" for it in messages)
    assert asked(two, "/plan", verb="kick", messages=named)["count"] == 3
    assert sum(buried(two)) == 2 * COUNT
    kicked = asked(two, "", verb="kick", messages=named)
    assert (kicked["result"], sum(it["done"] for it in kicked["nodes"])) == ("ok", 3)
    some = asked(two, "", verb="kick", reason="requeued", limit=2, rate=0)
    assert sum(it["done"] for it in some["nodes"]) == 2
    assert asked(two, "", verb="kick", reason="nosuch")["nodes"] == []
    assert sum(buried(two)) == 2 * COUNT - 5
    newest = two.admin.json("GET", "/api/v2/activity?kind=action").json["activity"]
    assert {it["what"] for it in newest} == {"kick_buried"}


def test_programs_discard_a_selection_only_with_its_number(two: Two) -> None:
    for count in (None, 1, True):
        assert asked(two, "", 400, verb="discard", count=count)["message"] == "INVALID_COUNT"
    assert buried(two) == [COUNT, COUNT]
    done = asked(two, "", verb="discard", count=asked(two, "/plan", verb="discard")["count"])
    assert (done["result"], buried(two)) == ("ok", [0, 0])


def test_programs_stop_a_kick_and_the_rest_stays_buried(two: Two) -> None:
    at_work = asked(two, "", verb="kick", rate=1)
    assert all(it["job"]["limit"] == COUNT for it in at_work["nodes"])
    stopped = asked(two, "/stop")
    assert [it["job"]["verb"] for it in stopped["nodes"]] == ["kick", "kick"]
    assert sum(buried(two)) > 0


def test_what_programs_ask_wrongly_changes_nothing(untouched: Two) -> None:
    wrong: list[dict[str, Any]] = [
        {"verb": "bury"},
        {"verb": "kick", "messages": ""},
        {"verb": "kick", "messages": "nonsense"},
        {"verb": "kick", "messages": "0000000000000001@evil:80"},
        {"verb": "kick", "messages": "0000000000000001@evil:80", "limit": 1},
        {"verb": "kick", "limit": -1},
        {"verb": "kick", "rate": "fast"},
        {"verb": "kick", "rate": -1},
        {"verb": "kick", "reason": 1},
    ]
    for it in wrong:
        asked(untouched, "", 400, **it)
        assert buried(untouched) == [COUNT, COUNT], it


def test_a_plan_says_that_a_kick_has_no_room_and_offers_force(two: Two, tmp_path: Path) -> None:
    (tmp_path / "new.toml").write_text('[[policy]]\nchannel = "c"\nmax_messages = 20\noverflow = "drop-oldest"\n')
    (tmp_path / "new.toml").replace(tmp_path / "policy.toml")
    summary = "/channel/buried?topic=t&channel=c&summary=true"
    assert eventually(lambda: [node.http("GET", summary).json["room"] for node in two.nodes] == [20, 20])
    text = two.text("/actions/kick_buried?topic=t&channel=c")
    assert "it has room for " in text
    assert all(f"20 of {COUNT} on {name_of(node)}" in text for node in two.nodes)
    assert 'name="force" value="true">Force: requeue' in text
    assert 'name="force"' not in two.text("/actions/kick_buried?topic=t&channel=c&limit=20")
    assert "the channel has no room for them" in two.post("/actions/kick_buried", "topic=t&channel=c&rate=")
    assert two.post("/actions/kick_buried", "topic=t&channel=c&rate=&force=true").count(f"{2 * COUNT} messages kicked")
