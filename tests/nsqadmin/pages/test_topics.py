from __future__ import annotations

from nsqadmin.cluster.model import Finding, Paused, Rates, Severity, Snapshot, TopicNode
from nsqadmin.pages.topics import MOST_CHANNELS, PER_PAGE, TopicsPage, topics_page
from nsqadmin.parts.filters import parse
from nsqadmin.parts.status import Standing
from tests.support.picture import channel, channel_node, snapshot, topic


def page_of(picture: Snapshot, text: str = "", **arguments: object) -> TopicsPage:
    return topics_page(picture, Standing(picture.findings), parse(text), **arguments)  # type: ignore[arg-type]


def names(page: TopicsPage) -> list[str]:
    return [row.topic.name for row in page.rows]


def picture() -> Snapshot:
    return snapshot(
        topic(channel(channel_node(depth=5), topic="a", name="x"), name="a"),
        topic(
            channel(channel_node(depth=900), topic="b", name="x", rates=Rates(incoming=9.0, finished=1.0)),
            channel(channel_node(depth=1), topic="b", name="y"),
            name="b",
        ),
        topic(name="c", nodes=()),
        findings=(Finding(rule="D3", severity=Severity.PROBLEM, verdict="v", advice="a", topic="b", channel="x"),),
    )


def test_a_topic_is_shown_with_the_channels_that_match() -> None:
    page = page_of(picture(), "depth>100")
    assert [(row.topic.name, [it.channel.name for it in row.channels]) for row in page.rows] == [("b", ["x"])]


def test_what_is_buried_can_be_filtered_by() -> None:
    rows = channel(channel_node(buried_count=3), name="x"), channel(name="y")
    page = page_of(snapshot(topic(*rows)), "buried>0")
    assert [it.channel.name for it in page.rows[0].channels] == ["x"]


def test_a_topic_that_matches_itself_is_shown_with_all_its_channels() -> None:
    page = page_of(picture(), "b")
    assert [len(row.channels) for row in page.rows] == [2]


def test_sorting_puts_what_is_unknown_last_whichever_way() -> None:
    assert names(page_of(picture(), sort="-net")) == ["b", "a", "c"]
    assert names(page_of(picture(), sort="depth")) == ["c", "a", "b"]
    assert names(page_of(picture(), sort="-state"))[0] == "b"


def test_channels_are_sorted_as_their_topics_are() -> None:
    row = next(it for it in page_of(picture(), sort="depth").rows if it.topic.name == "b")
    assert [it.channel.name for it in row.channels] == ["y", "x"]


def test_trouble_of_a_channel_is_seen_at_its_topic() -> None:
    states = {row.topic.name: row.state.word for row in page_of(picture()).rows}
    assert states == {"a": "OK", "b": "1 problem", "c": "Inactive"}


def test_many_topics_come_in_pages() -> None:
    many = snapshot(*(topic(name=f"t{at:04}") for at in range(PER_PAGE * 2 + 1)))
    assert [(len(page.rows), page.pages) for page in (page_of(many, page=at) for at in (1, 3, 99))] == [
        (PER_PAGE, 3),
        (1, 3),
        (1, 3),
    ]


def test_a_topic_with_very_many_channels_does_not_fill_the_page() -> None:
    wide = topic(*(channel(topic="t", name=f"c{at}") for at in range(MOST_CHANNELS + 7)))
    (row,) = page_of(snapshot(wide)).rows
    assert (len(row.channels), row.left_out) == (MOST_CHANNELS, 7)


def test_what_a_silent_node_has_is_unknown_and_found_by_a_filter() -> None:
    rows = channel_node("n1:4151"), channel_node("n2:4151")
    partly = channel(*rows, topic="p", name="x", silent=("n2:4151",))
    gone = channel(rows[1], topic="g", name="x", silent=("n2:4151",))
    fine = channel(rows[0], topic="f", name="x")
    two = TopicNode(node="n1:4151"), TopicNode(node="n2:4151")
    page = page_of(
        snapshot(
            topic(fine, name="f", nodes=two[:1]),
            topic(gone, name="g", nodes=two[1:], silent=("n2:4151",)),
            topic(partly, name="p", nodes=two, silent=("n2:4151",)),
        ),
        "silent>0",
    )
    assert names(page) == ["g", "p"]
    assert [(row.state.word, row.channels[0].state.word) for row in page.rows] == [
        ("Unknown", "Unknown"),
        ("Partly unknown", "Partly unknown"),
    ]


def test_topics_between_workers_are_folded_away_until_one_looks_for_them() -> None:
    mailbox = "celery.pidbox#ephemeral"
    shown = snapshot(topic(name="mails"), topic(name=mailbox))
    assert (names(page_of(shown)), page_of(shown).internal) == (["mails"], 1)
    assert names(page_of(shown, sort="-state")) == ["mails"]
    assert names(page_of(shown, "state:internal")) == [mailbox]
    assert names(page_of(shown, "pidbox")) == [mailbox]


def test_a_topic_above_channels_that_match_is_only_their_context() -> None:
    shown = snapshot(
        topic(channel(topic="orders", name="billing"), channel(topic="orders", name="audit"), name="orders")
    )
    (row,) = page_of(shown, "billing").rows
    assert ([it.channel.name for it in row.channels], row.is_context) == (["billing"], True)
    (row,) = page_of(shown, "orders").rows
    assert (len(row.channels), row.is_context) == (2, False)


def test_a_topic_names_its_worst_channel_or_the_deepest_if_all_are_fine() -> None:
    shown = snapshot(
        topic(channel(topic="a", name="idle"), name="a"),
        topic(
            channel(channel_node(depth=2), topic="b", name="x"),
            channel(channel_node(depth=9), topic="b", name="y"),
            name="b",
        ),
        topic(
            channel(channel_node(depth=9), topic="c", name="x"),
            channel(channel_node(), topic="c", name="z", paused=Paused.YES),
            name="c",
        ),
    )
    worst = {row.topic.name: row.worst and row.worst.channel.name for row in page_of(shown).rows}
    assert worst == {"a": None, "b": "y", "c": "z"}
