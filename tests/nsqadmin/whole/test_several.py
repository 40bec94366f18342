"""Actions on several topics, channels and incidents, and the open message in the URL: pages without a script, two nodes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from html import unescape
from urllib.parse import quote, urlencode

import pytest

from tests.support.cluster import name_of
from tests.support.process import Answer, Nsqadmin, Nsqd, eventually, needs_module

needs_module("starlette")
needs_module("jinja2")

ROLES = """
[[role]]
name = "all"
users = ["ana"]
can = ["admin", "operator", "payload"]

[[role]]
name = "one"
users = ["ben"]
can = ["operator"]
topics = ["shop-*"]
"""
FORM = {"content-type": "application/x-www-form-urlencoded"}
TOPICS = ("shop-orders", "shop-mail", "other")
# Channels that no other test changes: as soon as three that are named alike have a problem, they are one incident for good.
UNATTENDED = {"shop-late/late", "lost/lost"}
HOSTILE = "<i>&\"'@x"  # as the note of an incident; nsqd takes no such names


@dataclass
class World:
    nodes: list[Nsqd]
    admin: Nsqadmin

    def ask(self, method: str, path: str, fields: list[tuple[str, str]] | None = None, user: str = "ana") -> Answer:
        body = urlencode(fields or []).encode()
        return self.admin.http(method, path, body if fields else b"", headers={**FORM, "x-forwarded-user": user})

    def page(self, path: str, user: str = "ana") -> str:
        return unescape(self.ask("GET", path, user=user).body.decode())

    def do(self, verb: str, *picks: str, user: str = "ana", **also: str) -> Answer:
        fields = [("do", verb), ("confirmed", "yes"), *(("pick", it) for it in picks), *also.items()]
        return self.ask("POST", "/actions/several", fields, user)

    def paused(self, *names: str) -> list[bool]:
        found = (name.partition("/") for name in names)
        return [
            all((node.channel(topic, channel) if channel else node.topic(topic))["paused"] for node in self.nodes)
            for topic, _, channel in found
        ]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("several")
    (folder / "roles.toml").write_text(ROLES)
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(Nsqd(folder / name, "broadcast-address=127.0.0.1", "retention-time=1h"))
            for name in ("n1", "n2")
        ]
        for node in nodes:
            for topic in TOPICS:
                node.post(f"/topic/create?topic={topic}")
                node.post(f"/channel/create?topic={topic}&channel=c")
                node.post(f"/mpub?topic={topic}", b"\n".join(b'{"number":%d}' % at for at in range(3)))
            for name in UNATTENDED:
                topic, _, channel = name.partition("/")
                node.post(f"/topic/create?topic={topic}")
                node.post(f"/channel/create?topic={topic}&channel={channel}")
                node.post(f"/pub?topic={topic}", b"{}")
        hosts = (f"nsqd-http-address={name_of(node)}" for node in nodes)
        quick = ("sample-interval=200ms", "discovery-interval=200ms", f"roles-file={folder / 'roles.toml'}")
        admin = stack.enter_context(Nsqadmin(*hosts, *quick, "external-url=https://ops.example"))
        it = World(nodes, admin)
        eventually(lambda: keys(it).keys() >= UNATTENDED)
        yield it
        assert "Traceback" not in admin.log


def form_with(page: str, button: str) -> list[tuple[str, str]]:
    """Return the fields of the first form that has this button."""
    found = [form for form in re.findall(r"<form.*?</form>", page, re.DOTALL) if f">{button}</button>" in form]
    assert found, page
    return re.findall(r'name="(\w+)" value="([^"]*)"', found[0])


def keys(world: World, user: str = "ana") -> dict[str, str]:
    found = world.admin.json("GET", "/api/v2/incidents", **{"x-forwarded-user": user}).json["incidents"]
    return {it["subject"]: it["key"] for it in found if it["severity"] == "problem"}


def test_several_incidents_are_muted_with_a_reason_and_rights_are_checked_for_each(world: World) -> None:
    known = eventually(lambda: (found := keys(world)).keys() >= UNATTENDED and found)
    chosen = [("pick", known[subject]) for subject in sorted(UNATTENDED)]
    assert f"https://ops.example/incidents/{known['lost/lost']}" in world.page(f"/incidents/{known['lost/lost']}.txt")
    asked = unescape(world.page(f"/incidents/mark?{urlencode([('do', 'mute'), *chosen])}"))
    assert "Mute 2 incidents" in asked
    fields = [("do", "mute"), ("for", "1h"), ("note", HOSTILE), *chosen]
    body = world.ask("POST", "/incidents/mark", fields, "ben").body.decode()
    assert "1 incident muted" in body
    assert "not done, it is over" in body, "he does not see the other"
    assert HOSTILE not in world.ask("GET", "/incidents").body.decode()
    states = world.admin.json("GET", "/api/v2/incidents", **{"x-forwarded-user": "ana"}).json["incidents"]
    muted = {it["subject"]: it["muted"]["note"] for it in states if it["state"] == "muted"}
    assert muted == {"shop-late/late": HOSTILE}
    assert (
        "2 incidents no longer muted" in world.ask("POST", "/incidents/mark", [("do", "unmute"), *chosen]).body.decode()
    )
    assert world.ask("POST", "/incidents/mark", [("do", "mute"), ("for", "1h")]).status == 400
    too_many = [("do", "unmute"), *(("pick", f"{number:012x}") for number in range(501))]
    refused = world.ask("POST", "/incidents/mark", too_many)
    assert (refused.status, "501 incidents are selected; at most 500 at once" in refused.body.decode()) == (400, True)


def test_one_confirmation_pauses_all_and_one_undo_changes_only_what_it_has_changed(world: World) -> None:
    names = ("shop-orders", "shop-orders/c", "shop-mail/c")
    world.nodes[0].post("/channel/pause?topic=shop-mail&channel=c")
    world.page("/topics?fresh=1")  # it is known before the action
    fields = [("do", "pause"), *(("pick", it) for it in names), ("of", "topics"), ("filter", "shop")]
    asked = unescape(world.ask("POST", "/actions/several", fields).body.decode())
    assert world.paused(*names) == [False, False, False], "it only asks"
    assert all(f"<wbr>{it}" in asked or it.replace("-", "-<wbr>").replace("/", "/<wbr>") in asked for it in names)
    assert 'href="/topics?filter=shop"' in asked, "and leads back to the same list"
    answer = world.ask("POST", "/actions/several", form_with(asked, "Pause"))
    receipt = unescape(answer.body.decode())
    assert "Pause 1 topic and 2 channels: 3 of 3 done." in receipt
    assert world.paused(*names) == [True, True, True]
    undone = world.ask("POST", "/actions/several", form_with(receipt, "Undo"))
    assert "3 of 3 done" in undone.body.decode()
    assert world.paused("shop-orders", "shop-orders/c") == [False, False]
    assert [node.channel("shop-mail", "c")["paused"] for node in world.nodes] == [True, False]
    world.do("unpause", "shop-mail/c")


def test_what_the_user_may_not_do_or_see_is_left_out_and_the_refusal_is_noted(world: World) -> None:
    receipt = world.do("pause", "shop-mail/c", "other/c", user="ben").body.decode()
    assert "1 of 1 done" in receipt
    assert "1 was left out" in receipt
    assert "it does not exist any more" in receipt, "he does not see this topic"
    assert world.paused("shop-mail/c", "other/c") == [True, False]
    answer = world.do("empty", "shop-mail/c", "shop-orders/c", user="ben")
    assert answer.status == 400
    assert "it is possible for none of them" in answer.body.decode()
    found = world.admin.json("GET", "/api/v2/activity?kind=action", **{"x-forwarded-user": "ana"}).json["activity"]
    noted = [(it["user"], it["what"], it["topic"], it["result"]) for it in found[:3]]
    assert noted == [
        ("ben", "empty_channel", "shop-orders", "refused"),
        ("ben", "empty_channel", "shop-mail", "refused"),
        ("ben", "pause_channel", "shop-mail", "ok"),
    ]
    world.do("unpause", "shop-mail/c")


def test_emptied_channels_come_back_with_one_undo(world: World) -> None:
    receipt = unescape(world.do("empty", "shop-orders/c", "other/c").body.decode())
    assert "Empty 2 channels (12 messages): 2 of 2 done." in receipt
    assert [node.channel(topic, "c")["depth"] for topic in ("shop-orders", "other") for node in world.nodes] == [0] * 4
    undone = unescape(world.ask("POST", "/actions/undo", form_with(receipt, "Undo")).body.decode())
    assert "12 messages are back." in undone
    assert undone.count("3 of 3 are back") == 4
    assert f"other/c on {name_of(world.nodes[0])}" in undone
    again = world.ask("POST", "/actions/undo", form_with(receipt, "Undo"))
    assert again.status == 409


def test_a_deletion_has_to_be_typed(world: World) -> None:
    for node in world.nodes:
        node.post("/topic/create?topic=gone.1")
        node.post("/topic/create?topic=gone.2")
    eventually(lambda: "gone.2" in world.page("/topics?fresh=1").replace("<wbr>", ""))
    answer = world.do("delete", "gone.1", "gone.2", typed="yes")
    assert answer.status == 400
    assert "type “delete” to confirm" in unescape(answer.body.decode())
    assert "2 of 2 done" in world.do("delete", "gone.1", "gone.2", typed="delete").body.decode()
    assert world.nodes[0].topic("gone.1") is None


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ([("do", "explode"), ("pick", "a")], "do: one of pause"),
        ([("do", "pause")], "select topics or channels first"),
        ([("do", "pause"), ("pick", "/<b>")], "this names no topic or channel"),
    ],
)
def test_a_request_that_makes_no_sense_says_why(world: World, fields: list[tuple[str, str]], reason: str) -> None:
    answer = world.ask("POST", "/actions/several", fields)
    assert answer.status == 400
    assert reason in unescape(answer.body.decode()).lower()
    assert b"<b>" not in answer.body


def test_the_url_names_the_open_message_and_the_server_shows_it(world: World) -> None:
    node = name_of(world.nodes[0])
    list_at = "/topics/other?tab=messages&filter=number+%3E+0"
    log = world.nodes[0].http("GET", "/topic/log?topic=other").json["log"]
    page = world.page(f"{list_at}&open={quote(f'1@{node}@{log}')}")
    (detail,) = re.findall(r'<section id="detail".*?</section>', page, re.DOTALL)
    assert '"number": 1' in re.sub(r"<[^>]*>", "", detail)
    assert f'href="{list_at}"' in detail, "and closes it without a script"
    assert page.count("<h1") == 1
    assert page.count('class="shown"') == 1
    gone = world.page(f"{list_at}&open={quote(f'99@{node}@{log}')}")
    assert "This message cannot be shown" in gone
    assert b"<i>" not in world.ask("GET", f"{list_at}&open={quote('<i>@<i>@<i>')}").body
    own = world.page(f"/message?topic=other&node={quote(node)}&sequence=1&log={log}")
    assert "Link to this message" not in own
    assert 'data-external="https://ops.example"' in own


def test_selected_messages_are_sent_as_lines(world: World) -> None:
    def sent(messages: str, user: str = "ana") -> Answer:
        body = json.dumps({"messages": messages}).encode()
        return world.admin.http("POST", "/api/v2/messages/shop-mail", body, headers={"x-forwarded-user": user})

    first, second = map(name_of, world.nodes)
    lines = list(map(json.loads, sent(f"0@{first} 2@{first} 1-2@{second} 77@{second}").body.splitlines()))
    assert {(it["node"], it["sequence"], it["body"]) for it in lines} == {
        (first, 0, '{"number":0}'),
        (first, 2, '{"number":2}'),
        (second, 1, '{"number":1}'),
        (second, 2, '{"number":2}'),
    }
    assert sent(f"0@{first}@anotherlog").body == b""
    assert "body" not in json.loads(sent(f"0@{first}", "ben").body), "he may not see it"
    assert sent(f"0-2000@{first}").status == 400
    assert sent("0@nobody:1").status == 404
