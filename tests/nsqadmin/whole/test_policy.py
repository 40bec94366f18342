"""What nsqadmin shows of policy files: what rules did, what a channel demands, and nodes whose files differ."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

from tests.support.client import Client
from tests.support.cluster import name_of
from tests.support.process import PATIENT, Nsqadmin, Nsqd, eventually, needs_module

needs_module("starlette")
needs_module("jinja2")


BOUNDS = """
[[policy]]
channel = "slow"
max_messages = 10
overflow = "drop-oldest"
max_in_flight = 3

[[policy]]
channel = "mail"
max_attempts = 1
max_buried = 2

[[policy]]
topic = "strict"
max_messages = 3

[[policy]]
topic = "tried"
max_messages = 3
dry_run = true

[[policy]]
topic = "old"
channel = "*"
expire_after = "10h"
"""
OTHER = BOUNDS.replace("max_messages = 10", "max_messages = 20")


@dataclass
class Cluster:
    nodes: list[Nsqd]
    files: list[Path]
    admin: Nsqadmin

    def findings(self, rule: str) -> list[Any]:
        found = self.admin.json("GET", "/api/v2/diagnose").json["findings"]
        return [it for it in found if it["rule"] == rule]

    def page(self, path: str, user: str = "") -> str:
        answer = self.admin.http("GET", path, headers={"X-Forwarded-User": user} if user else {})
        assert answer.status == 200, answer
        return unescape(answer.body.decode()).replace("<wbr>", "")

    def shows(self, path: str, said: str) -> None:
        """Wait until a page says this. It gives nodes two seconds to report their policies, too little for a busy machine."""
        eventually(lambda: said in self.page(path))


@contextmanager
def a_cluster(folder: Path, *texts: str, options: tuple[str, ...] = ()) -> Iterator[Cluster]:
    """Run a node for each text of a policy file (without a file, if it is empty), and nsqadmin."""
    with ExitStack() as stack:
        nodes, files = [], []
        for at, text in enumerate(texts):
            file = folder / f"policy-{at}.toml"
            file.write_text(text)
            files.append(file)
            policy = [f"policy-file={file}"] if text else []
            nodes.append(stack.enter_context(Nsqd(folder / f"n{at}", "broadcast-address=127.0.0.1", *policy)))
        named = [f"nsqd-http-address={name_of(it)}" for it in nodes]
        admin = stack.enter_context(Nsqadmin(*named, "sample-interval=300ms", PATIENT, *options))
        yield Cluster(nodes, files, admin)
        assert "Traceback" not in admin.log


def prepare(node: Nsqd, topic: str, *channels: str) -> None:
    node.post(f"/topic/create?topic={topic}")
    for channel in channels:
        node.post(f"/channel/create?topic={topic}&channel={channel}")


def publish(node: Nsqd, topic: str, count: int) -> int:
    return node.http("POST", f"/mpub?topic={topic}", b"\n".join(b"%d" % it for it in range(count))).status


def replace_file(file: Path, text: str) -> None:
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


def test_what_rules_do_is_shown_by_cause_and_found(tmp_path: Path) -> None:
    with a_cluster(tmp_path, BOUNDS) as it:
        (node,) = it.nodes
        prepare(node, "t", "slow")
        prepare(node, "strict", "c")
        prepare(node, "tried", "c")
        prepare(node, "old", "left")
        eventually(lambda: len(it.admin.json("GET", "/api/v2/topics").json["topics"]) == 4)
        publish(node, "t", 25)
        assert [publish(node, topic, 4) for topic in ("strict", "tried")] == [429, 200]
        eventually(lambda: "Dry run</span>" in it.page("/topics/tried"))  # the last one, so all others are known, too
        (dropped,) = eventually(lambda: it.findings("D22"))
        assert (dropped["topic"], dropped["channel"], dropped["severity"]) == ("t", "slow", "problem")
        assert {"label": "overflow, dropped", "value": "15"} in dropped["evidence"]
        (refused,) = eventually(lambda: it.findings("D21"))
        assert (refused["topic"], refused["verdict"]) == ("strict", "Publishes are refused: max_messages is reached")
        (ending,) = eventually(lambda: it.findings("D24"))
        assert (ending["channel"], ending["severity"]) == ("left", "info")
        channel = it.admin.json("GET", "/api/v2/topics/t/slow").json
        assert (channel["policy_counts"], channel["policy_recent"]) == ([["overflow, dropped", 15]],) * 2
        metrics = it.admin.http("GET", "/metrics").body.decode()
        assert 'nsq_channel_policy_messages{topic="t",channel="slow",cause="overflow, dropped"} 15' in metrics
        for page in (it.page("/topics/t/slow"), it.page("/topics/t")):
            table = page.partition('id="policy-counts"')[2].partition("</section>")[0]
            assert (
                '<span class="state problem"><svg class="icon" aria-hidden="true"><use href="#i-problem"/></svg>Lost'
                in table
            )
            assert "Oldest messages dropped: channel over its limit (overflow)" in table
        assert "Refused</span>" in it.page("/topics/strict")
        assert 'id="policy-counts"' not in it.page("/topics/old")
        elsewhere = it.page("/topics/old?tab=policy").partition('id="policy-effects"')[2].partition("</section>")[0]
        assert '<a href="/topics/t/slow">' in elsewhere  # a topic without rules shows where policies drop messages
        assert "</a> 15</td>" in elsewhere  # on its one node
        on_node = it.page(f"/nodes/{name_of(node)}").partition('id="policy-effects"')[2].partition("</section>")[0]
        assert "Policy effects on this node" in on_node
        assert '<a href="/topics/t/slow">' in on_node
        assert 'id="policy-counts"' in it.page("/topics/t/slow?tab=policy")


def test_a_channel_that_stops_itself_says_why_everywhere(tmp_path: Path) -> None:
    with a_cluster(tmp_path, BOUNDS) as it:
        (node,) = it.nodes
        prepare(node, "t", "mail")
        eventually(lambda: it.admin.http("GET", "/api/v2/topics/t/mail").status == 200)
        publish(node, "t", 5)
        with node.connect() as client:
            bury(client, "t", "mail", 3)
            (finding,) = eventually(lambda: it.findings("D20"))
            why = "more than 2 messages are buried (max_buried)"
            assert finding["verdict"] == f"It has paused itself: {why}"
            for path in ("/topics/t/mail", "/topics/t/mail?tab=nodes", f"/nodes/{name_of(node)}", "/activity"):
                assert why in it.page(path), path
            assert f"by the channel itself: {why}" in it.page("/topics/t/mail")
            assert "outside nsqadmin" not in it.page("/topics/t/mail")
            assert "Paused itself" in it.page("/topics?filter=state%3Apaused")
            node.post("/channel/unpause?topic=t&channel=mail")
            eventually(lambda: not it.findings("D20"))
            assert f"by the channel itself: {why}" not in it.page("/topics/t/mail")


def bury(client: Client, topic: str, channel: str, count: int) -> None:
    """Let so many messages fail, one after the other."""
    client.subscribe(topic, channel, ready=1)
    for _ in range(count):
        client.requeue(client.message())


def test_the_tab_policy_shows_each_key_with_its_line_and_where_nodes_differ(tmp_path: Path) -> None:
    path = "/topics/t/slow?tab=policy"
    with a_cluster(tmp_path, BOUNDS, BOUNDS, OTHER) as it:
        for node in it.nodes:
            prepare(node, "t", "slow")
        # A sample may fall between the third node's topic and its channel, so wait for the channel, not for the topic.
        eventually(lambda: len(it.admin.json("GET", "/api/v2/topics/t/slow").json.get("nodes", ())) == 3)
        names = [name_of(node) for node in it.nodes]
        page = eventually(lambda: "does not report its policy" not in (text := it.page(path)) and text)
        rows = {line.partition("</tr>")[0] for line in page.split("<tr data-row>")}
        (ten,) = [row for row in rows if "<code>max_messages</code>" in row and "<code>10</code>" in row]
        assert ">2</td>" in ten
        assert [name in ten for name in names] == [True, True, False]
        (twenty,) = [row for row in rows if "<code>max_messages</code>" in row and "<code>20</code>" in row]
        assert [name in twenty for name in names] == [False, False, True]
        (overflow,) = [row for row in rows if "<code>overflow</code>" in row]
        assert '"drop-oldest"' in overflow
        assert "all nodes</span>" in overflow
        assert "Nodes use different policy files" in page
        it.shows("/topics/t?tab=policy", "No policy applies here")
        it.shows("/topics/t/slow", ": 3 on each node, up to 9 on these three</p>")
        it.nodes[2].stop()
        page = eventually(lambda: f"{names[2]}</a> does not report its policy" in (text := it.page(path)) and text)
        assert "Nodes use different policy files" not in page
        rows = {line.partition("</tr>")[0] for line in page.split("<tr data-row>")}
        (ten,) = [row for row in rows if "<code>max_messages</code>" in row]
        assert "all nodes that report</span>" in ten


def test_nodes_with_different_files_and_without_one_are_found_and_a_refused_file_is_named(tmp_path: Path) -> None:
    with a_cluster(tmp_path, BOUNDS, BOUNDS, "") as it:
        names = [name_of(node) for node in it.nodes]
        verdict = f"{names[2]} has no policy file, unlike {', '.join(sorted(names[:2]))}"
        eventually(lambda: [found["verdict"] for found in it.findings("D26")] == [verdict])  # of all three nodes
        assert "Nodes use different policy files" in it.page("/nodes")
        assert f"no policy file <b>{names[2]}</b>" in it.page("/nodes")
        assert "has no policy file, unlike" in it.page(f"/nodes/{names[2]}")
        it.shows(f"/nodes/{names[2]}", "None: only the node's options apply.")
        replace_file(it.files[0], BOUNDS + "\n[[policy]]\nmax_atempts = 3\n")
        (refused,) = eventually(lambda: it.findings("D25"))
        assert (refused["node"], refused["severity"]) == (names[0], "warning")
        page = eventually(lambda: "unknown key" in (text := it.page(f"/nodes/{names[0]}")) and text)
        assert str(it.files[0]) in page
        assert len(it.findings("D26")) == 1  # what is in force is the same
        replace_file(it.files[0], OTHER)
        eventually(lambda: not it.findings("D25"))
        eventually(lambda: len(it.findings("D26")) == 2)


def test_who_does_not_see_all_topics_sees_neither_paths_nor_mistakes(tmp_path: Path) -> None:
    roles = tmp_path / "roles.toml"
    roles.write_text(
        '[[role]]\nname="a"\nusers=["all"]\ncan=["viewer"]\n'
        '[[role]]\nname="s"\nusers=["some"]\ncan=["viewer"]\ntopics=["t"]\n'
    )
    with a_cluster(tmp_path, BOUNDS, options=(f"roles-file={roles}",)) as it:
        (node,) = it.nodes
        prepare(node, "t", "slow")
        prepare(node, "hidden")
        replace_file(it.files[0], '[[policy]]\ntopic = "hidden"\nmax_atempts = 3\n')
        path = f"/nodes/{name_of(node)}"
        eventually(lambda: "max_atempts" in it.page(path, "all"))
        for shown in (path, "/topics/t?tab=policy", "/topics/t/slow?tab=policy"):
            eventually(lambda shown=shown: "refused" in it.page(shown, "some"))
            assert "max_atempts" not in it.page(shown, "some")
            assert str(it.files[0]) not in it.page(shown, "some")
        answer = it.admin.http("GET", "/api/v2/nodes", headers={"X-Forwarded-User": "some"})
        assert b"max_atempts" not in answer.body
        answer = it.admin.http("GET", "/topics/hidden?tab=policy", headers={"X-Forwarded-User": "some"})
        assert answer.status == 404
