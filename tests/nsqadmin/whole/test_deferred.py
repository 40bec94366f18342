"""Deferred messages in nsqadmin, on three real nsqd: listed, searched, cancelled, moved, and with a node that hangs."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.cluster import name_of
from tests.support.process import PATIENT, Nsqadmin, Nsqd, Nsqlookupd, eventually, needs_module

needs_module("starlette")


TAB = "/topics/t/c?tab=deferred"
COUNT = 12  # messages of each node
MINUTE = 60_000  # milliseconds
HTML = "<script>alert(1)</script>"


@dataclass
class Three:
    """Three nodes that have each deferred 12 messages of channels c and other, with keys and headers."""

    nodes: list[Nsqd]
    admin: Nsqadmin

    def text(self, path: str = TAB) -> str:
        answer = self.admin.http("GET", path)
        assert answer.status == 200, answer
        return unescape(answer.body.decode())

    def wait_for_all(self) -> None:
        """Wait until the tab shows the messages of all nodes. It is 404 until a sample has the topic."""
        eventually(lambda: f"{3 * COUNT}</span> messages on 3 nodes" in self.admin.http("GET", TAB).body.decode())

    def post(self, path: str, form: str, status: int = 200) -> str:
        headers = {"content-type": "application/x-www-form-urlencoded"}
        answer = self.admin.http("POST", path, form.encode(), headers=headers)
        assert answer.status == status, answer
        return unescape(answer.body.decode())

    def ask(self, path: str, status: int = 200, **body: Any) -> Any:
        answer = self.admin.json("POST", f"/api/v2/deferred{path}", {"topic": "t", "channel": "c", **body})
        assert answer.status == status, answer
        return answer.json

    def listed(self, arguments: str = "") -> Any:
        return self.admin.json("GET", f"/api/v2/deferred/t/c?limit=100{arguments}").json

    def whole(self, arguments: str = "") -> Any:
        """Return the list when one step was enough for it. It ends after two seconds, which a busy machine may need."""
        return eventually(lambda: not (it := self.listed(arguments))["after"] and it)

    def deferred(self, channel: str = "c") -> list[int]:
        return [node.channel("t", channel)["deferred_count"] for node in self.nodes]

    def consumed(self, channel: str = "c") -> list[str]:
        """Make everything that is left due, and take it with real consumers. Return the names of the messages."""
        bodies: list[str] = []
        for node in self.nodes:
            if node.channel("t", channel)["deferred_count"]:
                node.post(f"/message/due?topic=t&channel={channel}&defer=0&from=0&to={COUNT}")
            depth = node.channel("t", channel)["depth"]
            with node.connect() as client:
                client.subscribe("t", channel, ready=100)
                messages = client.messages(depth)
                client.finish(*messages)
                assert client.stays_silent(0.2)
            bodies += [json.loads(it.body)["name"] for it in messages]
        return sorted(bodies)


def names(*numbers: int, nodes: str = "012") -> list[str]:
    return sorted(f"{node}-{number}" for node in nodes for number in (numbers or range(COUNT)))


def fill(node: Nsqd, index: int) -> None:
    node.post("/topic/create?topic=t")
    for channel in ("c", "other"):
        node.post(f"/channel/create?topic=t&channel={channel}")
    for number in range(COUNT):
        body = json.dumps({"name": f"{index}-{number}", "secret": "4711-x", "note": HTML if number == 1 else "plain"})
        headers = {"Nsq-Header-region": "eu" if number % 4 == 0 else "us"}
        path = f"/pub?topic=t&key=order-{index}-{number}&defer={(10 + 3 * number + index) * MINUTE}"
        assert node.http("POST", path, body.encode(), headers=headers).status == 200


@contextmanager
def three_nodes(folder: Path, patience: str = PATIENT) -> Iterator[Three]:
    with ExitStack() as stack:
        lookupd = stack.enter_context(Nsqlookupd())
        options = ["broadcast-address=127.0.0.1", f"lookupd-tcp-address=127.0.0.1:{lookupd.tcp[1]}"]
        nodes = [stack.enter_context(Nsqd(folder / f"n{index}", *options)) for index in range(3)]
        for index, node in enumerate(nodes):
            fill(node, index)
        eventually(lambda: len(lookupd.producers("t")) == 3)
        quick = ("sample-interval=300ms", "discovery-interval=300ms", patience)
        admin = stack.enter_context(Nsqadmin(f"lookupd-http-address=127.0.0.1:{lookupd.http_address[1]}", *quick))
        it = Three(nodes, admin)
        it.wait_for_all()
        yield it
        assert "Traceback" not in admin.log


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Three]:
    with three_nodes(tmp_path) as it:
        yield it


@pytest.fixture
def three_of_which_one_hangs(tmp_path: Path) -> Iterator[Three]:
    """Return three nodes for a test that stops one of them."""
    with three_nodes(tmp_path, "http-client-request-timeout=5s") as it:
        yield it


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    """Three nodes for tests that change nothing."""
    with three_nodes(tmp_path_factory.mktemp("untouched")) as it:
        yield it


def picks(text: str) -> list[str]:
    return [it.partition('"')[0] for it in text.split('name="pick" value="')[1:]]


def fields(page: str, name: str) -> str:
    """Return the value of a hidden field of the plan."""
    return page.partition(f'name="{name}" value="')[2].partition('"')[0]


def confirmed(three: Three, action: str, form: str, more: str = "") -> str:
    """Look at the plan, and confirm it as the page does. Return the receipt."""
    plan = three.post(f"/actions/{action}", f"topic=t&channel=c&{form}")
    again = f"topic=t&channel=c&confirmed=yes&messages={quote(fields(plan, 'messages'))}"
    return three.post(f"/actions/{action}", again + ("&all=yes" if 'name="all"' in plan else "") + more)


# Looking


def test_messages_of_all_nodes_come_by_when_they_are_due(untouched: Three) -> None:
    raw = untouched.admin.http("GET", TAB).body.decode()
    assert (HTML in raw, "&lt;script&gt;" in raw) == (False, True)
    assert "deferred" in untouched.text("/topics/t/c")
    found = untouched.whole()
    bodies = [json.loads(it["message"]["body"])["name"] for it in found["messages"]]
    assert bodies == [f"{node}-{number}" for number in range(COUNT) for node in range(3)]
    dues = [it["due"] for it in found["messages"]]
    assert dues == sorted(dues)
    assert [(it["count"], it["error"]) for it in found["nodes"]] == [(COUNT, "")] * 3
    assert found["messages"][0]["key"] == "order-0-0"
    assert found["messages"][0]["message"]["headers"] == {"region": "eu"}
    assert (found["after"], found["missing"], found["looked"]) == ("", [], 3 * COUNT)


def test_pages_and_steps_go_on_to_the_last_message(untouched: Three) -> None:
    seen: list[str] = []
    path = f"{TAB}&limit=20"
    for _ in range(5):
        text = untouched.text(path)
        seen += picks(text)
        _, found, rest = text.partition('<div class="pager"><a class="button" id="go-on" href="')
        if not found:
            break
        path = rest.partition('"')[0]
    assert len(seen) == len(set(seen)) == 3 * COUNT


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        ("1-11", 1),
        ("ORDER-2-", COUNT),
        ("@key = order-1-5", 1),
        ("header.region = eu", 9),
        ("name = 2-3 and header.region = us", 1),
        ("nosuch", 0),
    ],
)
def test_body_key_and_headers_are_searched(untouched: Three, wanted: str, count: int) -> None:
    found = untouched.whole(f"&filter={quote(wanted)}")
    assert (len(found["messages"]), found["looked"]) == (count, 3 * COUNT)
    said = f"{count} {'match' if count == 1 else 'matches'} in all<" if count else "Nothing matches"
    text = eventually(lambda: said in (it := untouched.text(f"{TAB}&filter={quote(wanted)}")) and it)
    assert len(picks(text)) == count


def test_one_message_has_an_address_and_what_names_none_says_so(untouched: Three) -> None:
    link = untouched.text().split("data-detail")[1].rpartition('href="')[2].partition('"')[0]
    assert "order-1-0" in untouched.text(link)
    gone = untouched.admin.http("GET", link.replace("place=", "place=0"))
    assert gone.status == 404
    assert untouched.admin.http("GET", "/deferred?topic=t&channel=c&node=x&place=x").status == 404


@pytest.mark.parametrize("wrong", ["after=x", "limit=501", f"filter={quote('a = 1 or')}"])
def test_a_list_that_cannot_be_made(untouched: Three, wrong: str) -> None:
    assert untouched.admin.json("GET", f"/api/v2/deferred/t/c?{wrong}").status == 400


def test_users_without_payload_see_and_search_no_more_than_elsewhere(untouched: Three, tmp_path: Path) -> None:
    roles = tmp_path / "roles.toml"
    roles.write_text('[[role]]\nname = "r"\nusers = ["*"]\ncan = ["viewer"]\n')
    lookupd = next(it for it in untouched.admin.options if "lookupd-http-address" in it)
    with Nsqadmin(lookupd, "sample-interval=300ms", f"roles-file={roles}", "mask=$.secret", PATIENT) as admin:
        viewer = Three(untouched.nodes, admin)
        viewer.wait_for_all()
        text = viewer.text()
        assert ("***" in text, "4711-x" in text, "order-1-5" in text) == (True, False, False)
        for wanted in ("4711-x", "order-1-5", "header.region = eu"):
            assert viewer.listed(f"&filter={quote(wanted)}")["messages"] == []
        assert "Cancelling and moving are not possible" in text
        form = "topic=t&channel=c&confirmed=yes&pick=" + quote(picks(text)[0])
        for action in ("cancel_deferred", "move_deferred"):
            assert 'disabled title="' in viewer.post(f"/actions/{action}", form.replace("&confirmed=yes", ""))
            viewer.post(f"/actions/{action}", f"{form}&when=now", status=403)
        viewer.ask("", 403, verb="cancel", messages=picks(text)[0])
        words = [it["text"] for it in admin.json("GET", "/api/v2/activity?kind=action").json["activity"]]
        assert any(it.startswith("refused to cancel deferred messages of t/c") for it in words)
    assert untouched.deferred() == [COUNT] * 3


# Cancelling and moving


def test_the_tab_of_a_paused_channel_does_not_promise_a_delivery(three: Three) -> None:
    assert "Each is delivered when it is due. Viewing" in three.text()
    three.nodes[0].post("/channel/pause?topic=t&channel=c")
    assert eventually(lambda: "but not on nodes where the channel is paused" in three.text())
    for node in three.nodes[1:]:
        node.post("/channel/pause?topic=t&channel=c")
    assert eventually(lambda: "nothing is delivered until you unpause it, even if it is due" in three.text())
    assert "Each is delivered" not in three.text()


def test_what_is_cancelled_on_the_page_is_never_delivered(three: Three) -> None:
    some = [it for it in picks(three.text()) if it.split("@")[0] in ("0", "7")]
    form = "&".join(f"pick={quote(it)}" for it in some)
    plan = three.post("/actions/cancel_deferred", f"topic=t&channel=c&{form}")
    assert "Cancel 6 deferred messages of t/c" in plan
    assert plan.count('data-label="Sequence">0, 7</td>') == 3
    assert "This cannot be undone" in plan
    assert three.deferred() == [COUNT] * 3
    receipt = confirmed(three, "cancel_deferred", form)
    assert "6 messages cancelled." in receipt
    assert (three.deferred(), three.deferred("other")) == ([COUNT - 2] * 3, [COUNT] * 3)
    for node in three.nodes:
        node.kill()
        node.start()
    assert three.consumed() == names(*range(1, 7), *range(8, COUNT))
    assert three.consumed("other") == names()
    words = [it["text"] for it in three.admin.json("GET", "/api/v2/activity?kind=action").json["activity"]]
    assert "cancelled 6 of 6 deferred messages of t/c" in words


def test_everything_that_matches_is_cancelled_after_its_number_was_typed(three: Three) -> None:
    form = f"all=yes&filter={quote('header.region = eu')}"
    assert "Type <code>9</code>" in three.post("/actions/cancel_deferred", f"topic=t&channel=c&{form}")
    three.post("/actions/cancel_deferred", f"topic=t&channel=c&confirmed=yes&typed=1&{form}", status=400)
    assert three.deferred() == [COUNT] * 3
    assert "9 messages cancelled." in confirmed(three, "cancel_deferred", form, "&typed=9")
    assert three.listed(f"&filter={quote('header.region = eu')}")["messages"] == []
    rest = f"topic=t&channel=c&confirmed=yes&when=10m&all=yes&filter={quote('@key ~ order-')}"
    headers = {"content-type": "application/x-www-form-urlencoded", "accept": "application/x-ndjson"}
    answer = three.admin.http("POST", "/actions/move_deferred", rest.encode(), headers=headers)
    first, *steps, last = [json.loads(line) for line in answer.body.splitlines()]  # the progress, as the page shows it
    nodes = sorted(name_of(it) for it in three.nodes)
    assert (sorted(first["asked"]), sorted(it["step"] for it in steps if it["done"])) == (nodes, nodes)
    assert "27 messages made due in 10m" in last["page"]
    assert three.consumed() == names(*(it for it in range(COUNT) if it % 4))


def test_messages_become_due_now_or_at_a_time(three: Three) -> None:
    last = picks(three.text())[-1]
    assert "Say when" in three.post(
        "/actions/move_deferred", f"topic=t&channel=c&confirmed=yes&pick={quote(last)}", status=400
    ).replace("say when", "Say when")
    receipt = confirmed(three, "move_deferred", f"pick={quote(last)}", "&when=1m")
    assert "1 message made due in 1m" in receipt
    assert picks(three.text())[0] == last  # it is the next one due
    too_far = confirmed(three, "move_deferred", f"pick={quote(last)}", "&when=9d")
    assert "it does not defer for that long" in too_far
    now = confirmed(three, "move_deferred", f"pick={quote(last)}", "&when=now")
    assert "1 message made due now" in now
    assert sum(three.deferred()) == 3 * COUNT - 1
    assert [node.channel("t", "c")["depth"] for node in three.nodes] == [0, 0, 1]
    again = confirmed(three, "cancel_deferred", f"pick={quote(last)}")
    assert "1 message cancelled" in again  # while it waits
    assert "No messages cancelled; 1 no longer waiting" in confirmed(three, "cancel_deferred", f"pick={quote(last)}")
    assert len(three.consumed()) == 3 * COUNT - 1


def test_a_node_that_hangs_is_unknown_and_is_not_asked(three_of_which_one_hangs: Three) -> None:
    three = three_of_which_one_hangs
    chosen = picks(three.text())[:3]  # one on each node
    hung = three.nodes[2]
    hung.send_signal(signal.SIGSTOP)
    try:
        assert eventually(lambda: f"{name_of(hung)}</strong>: unknown" in three.text())
        text = three.text()
        assert f"{2 * COUNT} messages on the nodes that answer (2 of 3)" in text
        assert f"{COUNT} messages when last seen" in text
        assert "No matches in the part that could be searched" in three.text(f"{TAB}&filter=nosuch")
        found = three.listed()
        assert [it["node"] for it in found["missing"]] == [name_of(hung)]
        assert [bool(it["error"]) for it in found["nodes"]].count(True) == 1
        form = "&".join(f"pick={quote(it)}" for it in chosen)
        receipt = confirmed(three, "cancel_deferred", form)
        assert "Done in part." in receipt
        assert "2 messages cancelled" in receipt
        assert f"{name_of(hung)} was not asked" in receipt
        plan = three.ask("/plan", verb="cancel", filter="")
        assert plan["count"] == 2 * COUNT - 2
        assert any(name_of(hung) in it for it in plan["remarks"])
    finally:
        hung.send_signal(signal.SIGCONT)
    eventually(lambda: "unknown" not in three.text())
    assert three.deferred() == [COUNT - 1, COUNT - 1, COUNT]


def test_a_topic_that_was_made_anew_keeps_its_messages(three: Three) -> None:
    chosen = picks(three.text())[0]
    three.nodes[0].post("/topic/delete?topic=t")
    fill(three.nodes[0], 0)
    three.text(f"{TAB}&fresh=1")  # or nsqadmin may remember the moment in which there was no topic
    receipt = confirmed(three, "cancel_deferred", f"pick={quote(chosen)}")
    assert "Not done." in receipt
    assert "deleted and created again" in receipt
    assert three.deferred() == [COUNT] * 3


def test_programs_cancel_and_move_what_they_name_or_what_matches(three: Three) -> None:
    messages = [it["pick"] for it in three.listed()["messages"][:2]]
    assert three.ask("/plan", verb="cancel", messages=" ".join(messages))["count"] == 2
    done = three.ask("", verb="cancel", messages=" ".join(messages))
    assert (done["result"], [(it["asked"], it["done"]) for it in done["nodes"]]) == ("ok", [(1, 1), (1, 1)])
    for count in (None, 1, True):
        assert three.ask("", 400, verb="cancel", filter="order-2", count=count)["message"] == "INVALID_COUNT"
    assert three.ask("", verb="cancel", filter="order-2", count=COUNT)["result"] == "ok"
    moved = three.ask("", verb="due", filter="", when="now")
    assert sum(it["done"] for it in moved["nodes"]) == 2 * COUNT - 2
    assert three.deferred() == [0, 0, 0]
    assert three.consumed() == names(*range(1, COUNT), nodes="01")


@pytest.mark.parametrize(
    "wrong",
    [
        {"verb": "kick", "filter": ""},
        {"verb": "cancel"},
        {"verb": "cancel", "messages": ""},
        {"verb": "cancel", "messages": "nonsense"},
        {"verb": "cancel", "messages": "1@evil:80"},
        {"verb": "cancel", "messages": "1@n1:4151", "filter": "x"},
        {"verb": "due", "filter": ""},
        {"verb": "due", "filter": "", "when": "2020-01-01T00:00:00Z"},
        {"verb": "due", "filter": "", "when": "soon"},
    ],
)
def test_what_programs_ask_wrongly_changes_nothing(untouched: Three, wrong: dict[str, Any]) -> None:
    untouched.ask("", 400, **wrong)
    assert untouched.deferred() == [COUNT] * 3
