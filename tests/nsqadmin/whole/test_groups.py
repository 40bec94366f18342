"""The groups of a channel's messages in nsqadmin: two nodes with rules about groups, and one without."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from urllib.parse import quote

from nsqcommon.wire import commands
from nsqcommon.wire.headers import encode_headers
from tests.nsqadmin.whole.test_policy import Cluster, a_cluster
from tests.support.cluster import name_of
from tests.support.process import Nsqd, eventually, needs_module

needs_module("starlette")
needs_module("jinja2")

RULES = '[[policy]]\ntopic = "t"\nchannel = "*"\norder = "group"\nmax_held = 3\n'
HTML = "<b>&é"


def fill(node: Nsqd, *groups: str) -> None:
    node.post("/topic/create?topic=t")
    node.post("/channel/create?topic=t&channel=c")
    messages = [(encode_headers({"nsq-group": group}), b"x") for group in groups]
    node.post("/hmpub?topic=t", commands.hmpub("t", messages).partition(b"\n")[2][4:])
    node.post("/sub?topic=t&channel=c&max=9&lease=10m")  # it must not end before the test


def rows(page: str) -> list[list[str]]:
    """Return the cells of the table with groups, as text."""
    body = page.partition('data-live="groups-rows"')[2].partition("</tbody>")[0]
    return [
        [re.sub(r"<[^>]*>", "", cell).strip() for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", it, re.DOTALL)]
        for it in body.split("<tr")[1:]
    ]


def act_on_a_group(it: Cluster, node: Nsqd) -> None:
    """Bury what waits of a group, take that back, and cancel it."""

    def post(action: str, more: str, status: int = 200) -> str:
        headers = {"content-type": "application/x-www-form-urlencoded"}
        form = f"topic=t&channel=c&{more}"
        answer = it.admin.http("POST", f"/actions/{action}", form.encode(), headers=headers)
        assert answer.status == status, answer
        return unescape(answer.body.decode())

    def held() -> tuple[int, int]:
        channel = node.channel("t", "c")
        return channel["held_count"], channel.get("buried_count", 0)

    plan = it.page("/actions/bury_group?topic=t&channel=c&group=acme")
    assert "Bury the group acme in t/c" in plan
    assert held() == (3, 0)
    receipt = post("bury_group", "group=acme&confirmed=yes")
    assert "4 messages buried; 2 left in flight at a consumer" in receipt
    (burial,) = re.findall(rf'name="burial" value="([^"]*@{re.escape(name_of(node))})"', receipt)
    assert held() == (1, 3)
    assert "3 messages returned to the group" in post("undo_bury_group", f"burial={quote(burial)}")
    assert held() == (1, 0)
    assert "Type <code>acme</code>, the name of the group" in post("cancel_group", "group=acme")
    post("cancel_group", "group=acme&confirmed=yes&typed=acm", status=400)
    assert "3 messages cancelled" in post("cancel_group", "group=acme&confirmed=yes&typed=acme")
    assert held() == (1, 0)
    activity = it.page("/activity")
    assert "cancelled 3 messages of a group of t/c" in activity


def test_the_largest_groups_of_all_nodes_are_shown_and_found_by_name(tmp_path: Path) -> None:
    with a_cluster(tmp_path, RULES, RULES, "") as it:
        one, two, other = it.nodes
        fill(one, "acme", "acme", "acme", HTML, HTML, "acme")  # the last one finds no room
        fill(two, "acme", "acme")
        fill(other, "acme")
        # nsqadmin may first see the topic on one node, before the others have it.
        reached = "max_held is reached on 1 of 3 nodes"
        eventually(lambda: [found["verdict"].startswith(reached) for found in it.findings("D36")] == [True])
        eventually(lambda: it.admin.json("GET", "/api/v2/topics/t/c").json["held_count"] == 4)
        assert '<a href="/topics/t/c?tab=groups">' in it.page("/topics/t/c")
        page = it.page("/topics/t/c?tab=groups")
        assert "4 messages held on the nodes that answer (2 of 3)" in page
        assert "Not read yet, so in no row: 1 message." in page
        assert f"Without rules about groups: {name_of(other)}" in page

        def groups() -> list[list[str]]:
            return rows(it.admin.http("GET", "/topics/t/c?tab=groups").body.decode().replace("<wbr>", ""))

        acme, html = eventually(lambda: (found := groups())[0][4] != "just now" and found)
        assert acme[:4] == ["acme", "3", "0", "2"]
        assert acme[4].endswith(" ago")
        assert html[:4] == ["&lt;b&gt;&amp;é", "1", "0", "1"]
        only = rows(it.page(f"/topics/t/c?tab=groups&name={quote('&é')}"))
        assert len(only) == 1
        none = it.page("/topics/t/c?tab=groups&name=nobody")
        assert "No group with this text in its name" in none
        act_on_a_group(it, one)
        two.stop()
        eventually(lambda: "is not included: it does not answer" in it.page("/topics/t/c?tab=groups"))
