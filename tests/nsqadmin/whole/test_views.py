"""What pages show in addition to the model: the overview, details, visibility, links."""

from __future__ import annotations

import pytest

from nsqadmin.access import Identity, Right, Role
from nsqadmin.cluster.model import (
    Client,
    Finding,
    Health,
    Latency,
    Lookupd,
    Paused,
    Percentile,
    Producer,
    Rates,
    Severity,
    Snapshot,
    TopicNode,
)
from nsqadmin.cluster.view import seen_by
from nsqadmin.diagnosis.incident_book import Book
from nsqadmin.pages.channel import channel_details
from nsqadmin.pages.consumers import client_groups, client_rows, consumers_page
from nsqadmin.pages.lookup import lookup_page
from nsqadmin.pages.overview import Overview, overview
from nsqadmin.pages.topic import topic_details
from nsqadmin.parts.links import Links
from nsqadmin.parts.messages import no_history
from nsqadmin.parts.rendering import Static, breakable, drain, latency
from nsqadmin.parts.status import Standing
from tests.support.picture import NOW, channel, channel_node, client, node, snapshot, topic

LINKS = Links("/nsq")


def a_finding(severity: Severity, **about: str) -> Finding:
    return Finding(rule="D3", severity=severity, verdict="v", advice="a", **about)  # type: ignore[arg-type]


# The overview


def shown(picture: Snapshot) -> Overview:
    book = Book()
    book.observe(picture)
    return overview(picture, book.open(), LINKS)


def test_the_verdict_counts_what_is_wrong() -> None:
    findings = tuple(a_finding(severity, topic=severity.value) for severity in Severity)
    assert shown(snapshot(findings=findings)).verdict == "1 problem, 1 warning"
    assert shown(snapshot()).verdict == "All is well"
    assert shown(snapshot(index=0)).verdict == "Waiting for the first answers"


def test_an_empty_list_tells_the_known_part() -> None:
    """Seen: "Unknown: 1 of 3 nodes is silent", as if nothing were known of the others."""
    it = topic(channel(channel_node(), channel_node("n2:4151"), silent=("n2:4151",)))
    down = node("n2:4151", health=Health.DOWN, answered_at=NOW - 60)

    def told(picture: Snapshot) -> set[str]:
        return {top.nothing for top in shown(picture).tops}

    unknown = "Unknown: 1 of 2 nodes is silent."
    assert told(snapshot(it, nodes=(node(), down))) == {f"None on the nodes that answer. {unknown}"}
    assert told(snapshot(it, nodes=(down,))) == {"Unknown: the only node is silent."}
    assert "No messages wait." in told(snapshot(it))


def test_the_buried_messages_of_a_silent_node_are_last_known() -> None:
    rows = channel_node(buried_count=196), channel_node("n2:4151", buried_count=98)
    assert shown(snapshot(topic(channel(*rows, silent=("n2:4151",))))).buried_last_known == 98


def test_remarks_need_no_attention() -> None:
    page = shown(snapshot(findings=(a_finding(Severity.INFO, topic="t"),)))
    assert (page.kind, page.incidents.cards, len(page.incidents.remarks)) == ("ok", (), 1)


def test_the_tops_rank_channels() -> None:
    rates = Rates(incoming=10.0, finished=4.0, requeued=1.0, timed_out=0.0, failed=1.0)
    picture = snapshot(
        topic(
            channel(channel_node(depth=5), name="a"),
            channel(channel_node(depth=50), name="b", rates=rates),
            channel(channel_node(depth=0), name="c"),
        )
    )
    tops = shown(picture).tops
    assert [[row.name for row in top.rows] for top in tops] == [["b", "a"], ["b"], ["b"], ["b"]]
    assert tops[3].rows[0].value == "20 % of 300/min"


# Consumers


def a_consumer(name: str, rate: float, *, host: str = "h", in_flight: int = 5) -> Client:
    return client(client_id=name, hostname=host, finish_rate=rate, in_flight_count=in_flight, ready_count=5)


def test_the_worst_consumer_is_first_and_its_state_is_in_words() -> None:
    clients = (a_consumer("c1", 10.0), a_consumer("c2", 11.0), a_consumer("c3", 1.0), a_consumer("c4", 0.0))
    rows = client_rows(channel(channel_node(clients=clients)), NOW)
    assert rows is not None
    assert [(row.client.client_id, row.state.word, row.state.kind) for row in rows] == [
        ("c4", "Stuck", "problem"),
        ("c3", "Slow", "warning"),
        ("c1", "OK", "ok"),
        ("c2", "OK", "ok"),
    ]


def test_a_group_of_consumers_is_as_bad_as_its_worst_and_the_worst_group_is_first() -> None:
    clients = (a_consumer("c1", 10.0, host="a"), a_consumer("c2", 10.0, host="b"), a_consumer("c3", 0.0, host="b"))
    rows = client_rows(channel(channel_node(clients=clients)), NOW) or ()
    assert [(it.host, it.state.word) for it in client_groups(rows, "host")] == [("b", "1 stuck"), ("a", "OK")]


def test_a_group_is_idle_only_if_all_of_it_is() -> None:
    busy, idle = a_consumer("c1", 10.0), a_consumer("c2", 0.0, in_flight=0)
    groups = [
        client_groups(client_rows(channel(channel_node(clients=clients)), NOW) or (), "host")
        for clients in ((busy, idle), (idle,))
    ]
    assert [group.state.word for (group,) in groups] == ["OK", "Idle"]


def test_a_group_of_consumers_in_different_states_counts_them() -> None:
    clients = (
        a_consumer("c1", 0.0),
        a_consumer("c2", 10.0),
        a_consumer("c3", 10.0),
        a_consumer("c4", 0.0, in_flight=0),
    )
    (group,) = client_groups(client_rows(channel(channel_node(clients=clients)), NOW) or (), "host")
    said = (group.state, *group.state.also)
    assert [(it.word, it.kind) for it in said] == [("1 stuck", "problem"), ("1 idle", "muted"), ("2 OK", "ok")]


def test_a_group_names_the_channels_of_its_worst_consumers_first() -> None:
    rates = {"a": 10.0, "b": 0.0, "aa#ephemeral": 10.0}
    each = (
        client_rows(channel(channel_node(clients=(a_consumer(name, rate),)), name=name), NOW)
        for name, rate in rates.items()
    )
    (group,) = client_groups([row for rows in each for row in rows or ()], "host")
    assert [name for _, name in group.channels] == ["b", "a", "aa#ephemeral"]


def test_consumers_that_were_not_asked_for_are_unknown() -> None:
    assert client_rows(channel(channel_node(clients=None, client_count=2), ready_count=None), NOW) is None
    assert client_rows(channel(channel_node(clients=())), NOW) == ()


def test_consumers_are_grouped_and_searched() -> None:
    clients = (client(client_id="a1", hostname="a"), client(client_id="a2", hostname="a"), client(hostname="b"))
    picture = snapshot(topic(channel(channel_node(clients=clients))))
    by_host = consumers_page(picture, wanted="", group="host").groups
    assert [(it.host, it.connections) for it in by_host] == [("a", 2), ("b", 1)]
    assert len(consumers_page(picture, wanted="A2", group="none").rows) == 1


# Details


def test_a_topic_knows_its_producers_the_busiest_first() -> None:
    def producer(name: str, rate: float) -> Producer:
        counts = (("t", 5, rate), ("other", 1, None))
        return Producer(node="n1:4151", client_id=name, hostname=name, remote_address="r", counts=counts)

    picture = snapshot(topic(), producers=(producer("slow", 1.0), producer("fast", 9.0)))
    found = topic_details(picture, picture.topics[0]).producers
    assert found is not None
    assert [row.producer.hostname for row in found] == ["fast", "slow"]


def test_why_there_is_no_history() -> None:
    assert no_history(topic()) == ""
    assert "ephemeral" in no_history(topic(name="t#ephemeral"))
    assert "no node" in no_history(topic(nodes=()))


def test_a_calm_channel_says_so() -> None:
    calm = channel(channel_node(depth=9, clients=(client(),)), drain_time=2.0)
    assert "gone in 2 s" in channel_details(topic(calm), calm, Standing(()), snapshot(topic(calm))).calm
    assert drain(calm) == "2 s"
    assert drain(channel(channel_node(depth=1), rates=Rates(incoming=2.0, finished=1.0))) == "growing"


def test_the_directory_shows_what_not_all_know() -> None:
    lookupds = (
        Lookupd(address="l1:4161", health=Health.OK, topics=("t", "u"), nodes=("n1:4151",)),
        Lookupd(address="l2:4161", health=Health.OK, topics=("t",), nodes=("n1:4151",)),
        Lookupd(address="l3:4161", health=Health.DOWN),
    )
    picture = snapshot(topic(), topic(name="u", nodes=()), lookupds=lookupds, nodes=(node(tombstones=("t",)),))
    page = lookup_page(picture, LINKS)
    assert [(it.name, it.known) for it in page.disagreements] == [("u", (True, False))]
    assert [it.name for it in page.inactive] == ["u"]
    assert page.tombstones == (("t", "n1:4151"),)


def test_names_that_are_missing_for_one_reason_are_one_row() -> None:
    names = tuple(f"t{number}" for number in range(100))
    lookupds = (
        Lookupd(address="l1:4161", health=Health.OK, topics=(*names, "shared"), nodes=("n1:4151", "n2:4151")),
        Lookupd(address="l2:4161", health=Health.OK, topics=("shared",), nodes=("n2:4151",)),
    )
    topics = [topic(name=name, nodes=(TopicNode(node="n1:4151"),)) for name in names]
    (row,) = lookup_page(snapshot(*topics, topic(name="shared"), lookupds=lookupds), LINKS).disagreements
    assert (row.name, row.kind, row.known, len(row.members)) == ("n1:4151", "node", (True, False), 100)


@pytest.mark.parametrize("shares", [(0.99, 0.5), (0.5, 0.99)])
def test_the_latency_of_a_row_is_the_highest_percentile(shares: tuple[float, ...]) -> None:
    points = tuple(Percentile(quantile=it, average=it * 1e9, minimum=it * 1e9, maximum=it * 1e9) for it in shares)
    assert latency(Latency(count=1, percentiles=points)).startswith("p99 ")


# Visibility and links


def test_what_one_may_not_see_is_nowhere() -> None:
    role = Role(name="r", can=frozenset((Right.VIEW,)), topics=("orders*",))
    picture = snapshot(
        topic(name="orders"),
        topic(name="secret"),
        findings=(a_finding(Severity.PROBLEM, topic="secret"),),
        nodes=(node(tombstones=("orders", "secret")),),
    )
    seen = seen_by(picture, Identity(roles=(role,)))
    assert [it.name for it in seen.topics] == ["orders"]
    assert seen.topic("secret") is None
    assert [it.tombstones for it in seen.nodes] == [("orders",)]
    assert seen.findings == ()


def test_a_state_is_the_worst_that_is_known() -> None:
    standing = Standing((a_finding(Severity.WARNING, topic="t", channel="c"),))
    assert standing.channel(channel()).word == "Warning"
    assert standing.channel(channel(paused=Paused.YES)).word == "Paused"
    assert standing.channel(channel(name="d")).word == "OK"


@pytest.mark.parametrize(
    ("path", "href"),
    [
        (LINKS.topic("x#ephemeral"), "/nsq/topics/x%23ephemeral"),
        (LINKS.channel("t", "a/b"), "/nsq/topics/t/a%2Fb"),
        (LINKS.to("/"), "/nsq"),
        (LINKS.to("/topics", filter="depth>1", sort="", page=None), "/nsq/topics?filter=depth%3E1"),
        (
            LINKS.action("pause_topic", topic="t", node=("n:1", "m:2")),
            "/nsq/actions/pause_topic?topic=t&node=n%3A1&node=m%3A2",
        ),
        (Links("").to("/"), "/"),
    ],
)
def test_links_arrive_where_they_are_meant(path: str, href: str) -> None:
    assert path == href


def test_names_may_be_wrapped_and_are_escaped() -> None:
    assert breakable("a.b<c>") == "a.<wbr>b&lt;c&gt;"
    assert breakable("a_b#ephemeral") == "a_<wbr>b<wbr>#ephemeral"
    assert breakable("'") == "&#39;"


def test_static_files_are_found_by_hash_and_nothing_else_is() -> None:
    static = Static()
    name = static.name("app.css")
    assert static.find(name) is not None
    assert static.find(name)[2] is True  # type: ignore[index]
    assert static.find("app.000000000000.css")[2] is False  # type: ignore[index]
    for bad in ("../app.py", "app.py", "none.css", ".css", "app..css"):
        assert static.find(bad) is None
